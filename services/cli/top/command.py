"""``octavo top``: what goes on in a stack, live."""

from typing import Annotated, Literal

import typer

from services.cli.options import ClientOptions, expand


@expand
def top(
    server: ClientOptions,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between two looks.")] = 1.0,
    sort: Annotated[
        Literal["state", "age", "tokens", "tenant"], typer.Option(help="By what requests are sorted at first.")
    ] = "state",
    once: Annotated[
        bool, typer.Option("--once", help="Print how it is and leave; so does a standard output that is no terminal.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each look; with --once a single one.")
    ] = False,
) -> None:
    """Show memory, requests, tenants and throughput as they change. q or Ctrl-C leaves.

    A tenant's key shows that tenant's share; the operator's key, or a gateway without tenants, shows all.
    """
    from services.cli.top.looking import print_json_lines, print_once, watch
    from services.cli.top.screen import Order

    if json:
        print_json_lines(server, interval, once=once)
    elif once:
        print_once(server, Order(sort))
    else:
        watch(server, interval, Order(sort))

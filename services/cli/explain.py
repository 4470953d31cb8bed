"""``octavo explain``: a request's life, with each decision and its reason."""

from typing import Annotated

import typer

from services.cli.connection import connected
from services.cli.options import ClientOptions, expand


@expand
def explain(
    request_id: Annotated[str, typer.Argument(metavar="REQUEST_ID", help="Which request, as its responses name it.")],
    server: ClientOptions,
    all_chunks: Annotated[
        bool, typer.Option("--all-chunks", help="Show each prefill chunk, however many there were.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the timeline as JSON.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.")] = 10.0,
) -> None:
    """Show what became of a request, when, and why: one that waits or runs, or one that ended not long ago."""
    with connected(server) as client:
        timeline = client.explain(request_id, timeout)
    if json:
        from services.cli.output import print_json

        print_json(timeline)
        return
    from rich.console import Console

    from services.cli.timeline import life_of
    from services.cli.waterfall import waterfall

    console = Console(highlight=False, emoji=False, markup=False)
    console.print(waterfall(timeline, life_of(timeline, all_chunks=all_chunks), console.width))

"""``octavo explain``: a request's life, with each decision and its reason."""

from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.connection import connected
from services.cli.errors import REFUSED, CommandError
from services.cli.options import ClientOptions, expand

if TYPE_CHECKING:
    from octavo.client import Client
    from octavo.v1 import monitoring_pb2

# Requests that have ended, among which an id is looked for by its beginning.
_ENDED = 1000


@expand
def explain(
    request_id: Annotated[
        str,
        typer.Argument(
            metavar="REQUEST_ID", help="Which request, as its responses name it; its first characters are enough."
        ),
    ],
    server: ClientOptions,
    all_chunks: Annotated[
        bool, typer.Option("--all-chunks", help="Show each prefill chunk, however many there were.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the timeline as JSON.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.")] = 10.0,
) -> None:
    """Show what became of a request, when, and why: one that waits or runs, or one that ended not long ago."""
    with connected(server) as client:
        timeline = _timeline(client, request_id, timeout)
    if json:
        from services.cli.output import print_json

        print_json(timeline)
        return
    from rich.console import Console

    from services.cli.timeline import life_of
    from services.cli.waterfall import waterfall

    console = Console(highlight=False, emoji=False, markup=False)
    console.print(waterfall(timeline, life_of(timeline, all_chunks=all_chunks), console.width))


def _timeline(client: "Client", request_id: str, timeout: float) -> "monitoring_pb2.Timeline":
    """Of the request with this id, or of the only one whose id begins so.

    Raises:
        CommandError: Several do.
        OctavoError: None does, or the call failed.
    """
    import grpc

    from octavo.client import OctavoError

    try:
        return client.explain(request_id, timeout)
    except OctavoError as error:
        if error.status is not grpc.StatusCode.NOT_FOUND:
            raise
        ids = {each.request_id for each in client.requests(_ENDED, timeout=timeout)}
        matching = sorted(each for each in ids if each.startswith(request_id))
        if not matching or not request_id:
            raise
    if len(matching) > 1:
        raise CommandError(f"several requests begin with {request_id!r}, such as {', '.join(matching[:3])}", REFUSED)
    return client.explain(matching[0], timeout)

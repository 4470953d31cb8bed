"""Commands for prompts that stay resident: ``pin``, ``unpin`` and ``pins``."""

from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.connection import connected
from services.cli.durations import format_duration, parse_duration
from services.cli.options import ClientOptions, check_cache_scope, expand
from services.cli.output import some

if TYPE_CHECKING:
    from octavo.v1 import inference_pb2

_Timeout = Annotated[float, typer.Option(help="Seconds to wait for an answer.")]


@expand
def pin(
    prompt: Annotated[str, typer.Argument(help="Text to keep, taken as it is.")],
    server: ClientOptions,
    ttl: Annotated[str, typer.Option(help="How long it stays, such as 90s, 1h30m or 2d; at most 30d.")],
    cache_scope: Annotated[
        str | None, typer.Option(help="Who may reuse it: app, tenant or shared:NAME; the tenant when absent.")
    ] = None,
    model: Annotated[str, typer.Option(help="Name of the model; the only one when absent.")] = "",
    timeout: Annotated[float | None, typer.Option(help="Seconds that computing it may take.")] = None,
) -> None:
    """Compute a prompt's keys and values once and keep them: requests that begin with it start faster."""
    check_cache_scope(cache_scope)
    seconds = parse_duration("ttl", ttl)

    with connected(server) as client:
        _show(client.pin(prompt, seconds, model=model, cache_scope=cache_scope, timeout=timeout))


@expand
def unpin(
    pin_id: Annotated[str, typer.Argument(metavar="ID", help="Which pin, as pin and pins show it.")],
    server: ClientOptions,
    timeout: _Timeout = 10.0,
) -> None:
    """Let go of a pinned prompt."""
    with connected(server) as client:
        client.unpin(pin_id, timeout)


@expand
def pins(server: ClientOptions, timeout: _Timeout = 10.0) -> None:
    """List the prompts that are pinned."""
    with connected(server) as client:
        for each in client.pins(timeout):
            _show(each)


def _show(pin: "inference_pb2.Pin") -> None:
    left = format_duration(pin.remaining.ToTimedelta().total_seconds())
    state = "" if pin.resident else ", to be computed again"
    size = f"{some(pin.pinned_tokens, 'token')} in {some(pin.pinned_blocks, 'block')}"
    typer.echo(f"{pin.pin_id}  {size}, {left} left{state}")

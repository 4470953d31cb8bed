"""``octavo chat``: a conversation in the terminal, or one message per line of stdin."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.connection import open_client
from services.cli.errors import REFUSED, UNUSABLE, CommandError, talking_to
from services.cli.options import ClientOptions, RequestOptions, SamplingOptions, expand
from services.cli.output import streamed_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from octavo.client import Client

_QUIT = "/quit"


@expand
def chat(
    server: ClientOptions,
    sampling: SamplingOptions,
    request: RequestOptions,
    system: Annotated[str | None, typer.Option(help="What the model is told before the conversation.")] = None,
    model: Annotated[str, typer.Option(help="Name of the model; the only one when absent.")] = "",
) -> None:
    """Talk with the model. Without a terminal, each line of stdin is one message."""
    interactive = sys.stdin.isatty()
    options = sampling.values() | asdict(request) | {"model": model}
    history = [{"role": "system", "content": system}] if system else []
    with open_client(server) as client:
        with talking_to(server.address):
            name = model or ", ".join(each.name for each in client.models(timeout=10.0))
        if interactive:
            print(f"Talking with {name} on {server.address}. {_QUIT} or Ctrl-D leaves.")
        for message in _messages(interactive):
            history.append({"role": "user", "content": message})
            try:
                answer = _answer(client, server.address, history, options)
            except CommandError as error:
                if not interactive or error.exit_code == UNUSABLE:
                    raise
                # Refused, such as a conversation that grew too long: the message is taken back and the talk goes on.
                history.pop()
                print("octavo:", error, file=sys.stderr)
                continue
            history.append({"role": "assistant", "content": answer})


def _messages(interactive: bool) -> "Iterator[str]":
    """What the user says, without empty lines."""
    if interactive:
        # Gives input() line editing and a history.
        import readline  # noqa: F401
    while True:
        try:
            line = input("> ") if interactive else sys.stdin.readline()
        except EOFError:
            print()
            return
        except UnicodeDecodeError as error:
            raise CommandError(f"stdin is not valid {error.encoding}: {error.reason}", REFUSED) from error
        if (not interactive and not line) or line.strip() == _QUIT:
            return
        if line.strip():
            yield line.strip()


def _answer(client: "Client", address: str, history: list[dict[str, str]], options: dict[str, Any]) -> str:
    """Streams the answer to stdout and returns it."""
    answer = ""
    with talking_to(address), streamed_text() as write:
        for response in client.generate(history, **options):
            answer += response.text
            write(response.text)
    return answer

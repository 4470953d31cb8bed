"""What commands show on the terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from octavo.v1 import common_pb2

# Why a prompt's match in the prefix cache ended, by the end of the name in octavo.v1.PrefixMatchEnd.
_MATCH_ENDS = {
    "NEVER_SEEN": "the rest is new",
    "EVICTED": "the rest was evicted",
    "OTHER_SCOPE": "the rest is cached under another scope",
    "PARTIAL_BLOCK": "the rest fills no block",
    "LAST_TOKEN": "all but the last token",
}


@contextmanager
def streamed_text() -> Iterator[Callable[[str], None]]:
    """Gives a function that shows a piece of text at once. At the end, whatever ended it, the line is closed."""
    started = False

    def write(text: str) -> None:
        nonlocal started
        started = started or bool(text)
        sys.stdout.write(text)
        sys.stdout.flush()

    try:
        yield write
    finally:
        if started:
            write("\n")


def describe_usage(usage: "common_pb2.Usage") -> str:
    """Token counts in a line, with the reason why no more of the prompt came from the cache."""
    from octavo.v1 import common_pb2

    names = {number: name.removeprefix("PREFIX_MATCH_END_") for name, number in common_pb2.PrefixMatchEnd.items()}
    reason = _MATCH_ENDS.get(names.get(usage.prefix_match_end, ""))
    cached = f"{usage.cached_tokens} cached" + (f" ({reason})" if reason else "")
    return f"{some(usage.prompt_tokens, 'prompt token')}, {cached}; {some(usage.completion_tokens, 'completion token')}"


def some(count: int, what: str) -> str:
    """So many of a thing, in words."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def print_json(message: "Message", indent: int | None = 2) -> None:
    """A message as JSON, with the names that it has in proto/."""
    from google.protobuf.json_format import MessageToJson

    text = MessageToJson(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        indent=indent,
        ensure_ascii=False,
    )
    print(text, flush=True)

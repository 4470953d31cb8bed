"""Commands and Lua scripts, as the connection sends them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Word: TypeAlias = str | bytes | int
"""One word of a command."""


class Script:
    """A Lua script, which runs atomically and is sent whole only to a Redis that does not know it yet.

    Every key that it touches is in its `KEYS`, and all of them have one hash tag. Redis refuses commands of a script
    for want of memory only before the first one that writes, so that one must be of those it refuses, unless the script
    is meant to work in a full Redis too. Then a script is done as a whole or not at all.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    def __call__(self, keys: Sequence[str], *arguments: Word) -> Command:
        """The command that runs it."""
        return Command(("EVALSHA", self.sha, len(keys), *keys, *arguments), self)


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Attributes:
        words: as in the Redis documentation.
        script: which script it runs, if it does.
    """

    words: tuple[Word, ...] = field(repr=False)
    script: Script | None = None


def command(*words: Word) -> Command:
    """A command that is no script."""
    return Command(words)


NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
"""Begins a script that reads Redis's clock: `now`, in ms."""

FORGET_ENDED = """
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
    if tonumber(string.match(all[i + 1], '^%d+')) <= now then redis.call('HDEL', KEYS[1], all[i]) end
end
"""
"""Ends a script that begins with `NOW`: what is over goes from the hash KEYS[1]; values begin with their end in ms."""

"""What a full block holds, and the name it is known by."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from kvmanager.spec import Scope

ROOT = b""
"""The parent of a sequence's first block."""

Identify = Callable[[bytes, bytes, bytes], bytes]


@dataclass(slots=True)
class Content:
    """A full block's tokens, and all that its keys and values depend on.

    Attributes:
        identity: SHA-256 over the fields below and everything before the block.
        parent: identity of the block before.
        tokens: int32, packed.
        scope: the narrowest of its tokens' scopes.
        likeness: equal for equal tokens from the sequence's beginning on, whatever their scopes (`likeness_after`). Not
            collision-proof: it explains misses and rules out matches, it never makes one.
    """

    identity: bytes
    parent: bytes
    tokens: bytes
    scope: Scope
    likeness: int

    def follows(self, likeness: int) -> bool:
        """Whether the tokens before the block are those of this likeness: its parent's name alone may have collided."""
        return self.likeness == likeness_after(likeness, self.tokens)


def block_identity(parent: bytes, tokens: bytes, salt: bytes, adapter: bytes = b"") -> bytes:
    """SHA-256 over everything that a full block's keys and values depend on.

    Args:
        parent: identity of the block before, `ROOT` for the first.
        tokens: the block's token ids, packed.
        salt: separates callers that must not share; the same tokens under another salt are another block.
        adapter: the weights' variant; empty for the base model.

    Every field is framed by its length, so no two different inputs are hashed as the same bytes.
    """
    frame = _frame(len(parent), len(tokens), len(salt), len(adapter))
    return hashlib.sha256(frame + parent + tokens + salt + adapter).digest()


@lru_cache(maxsize=1024)
def _frame(*lengths: int) -> bytes:
    return b"octavo.block.1 %d %d %d %d:" % lengths


def likeness_after(before: int, tokens: bytes) -> int:
    """Of a block with these tokens, given the likeness of the block before; 0 before the first.

    Nothing that `block_identity` computes goes into it: where identities collide, likenesses still differ.
    """
    return hash((before, tokens))


class ScopeMap:
    """The scope of each logical block of a request: the narrowest of those of its tokens.

    Args:
        spans: (tokens, scope) from the prompt's beginning on; what follows them has the last one's scope.
    """

    def __init__(self, spans: Sequence[tuple[int, Scope]], block_size: int) -> None:
        self.last = spans[-1][1]
        self._scopes: list[Scope] = []
        if len(spans) == 1:
            return
        start = 0
        for num_tokens, scope in spans:
            end = start + num_tokens
            for index in range(start // block_size, -(-end // block_size)):
                if index == len(self._scopes):
                    self._scopes.append(scope)
                elif scope.narrowness > self._scopes[index].narrowness:
                    self._scopes[index] = scope
            start = end

    def __getitem__(self, index: int) -> Scope:
        return self._scopes[index] if index < len(self._scopes) else self.last

    def owners(self, first: int, end: int) -> Counter[str]:
        """How many of these logical blocks each owner has."""
        owners = Counter(scope.owner for scope in self._scopes[first:end])
        if (num_more := end - max(first, len(self._scopes))) > 0:
            owners[self.last.owner] += num_more
        return owners

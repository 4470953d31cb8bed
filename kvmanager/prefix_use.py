"""How much of their prompts tenants found in the prefix cache, by scope."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from kvmanager.request import Request
from kvmanager.spec import Scope


class ScopeKey(NamedTuple):
    """Prompts of one tenant in scopes of one kind: whose blocks they are, and how narrow the scope is."""

    tenant: str
    owner: str
    narrowness: int


@dataclass(slots=True)
class PromptTokens:
    """Tokens of prompts that were looked up when they were first admitted, and those of them that were there."""

    queried: int = 0
    hit: int = 0


@dataclass(slots=True)
class PrefixUse:
    """Counts since start.

    Attributes:
        scopes: by tenant and kind of scope.
    """

    scopes: dict[ScopeKey, PromptTokens] = field(default_factory=dict)

    def looked_up(self, request: Request, num_cached: int, block_size: int) -> None:
        """A prompt was looked up, and its first so many tokens were there."""
        num_tokens = len(request.spec.prompt_token_ids)
        if len(request.spec.spans) == 1:
            self._add(request, request.scopes.last, num_tokens, num_cached)
            return
        for first in range(0, num_tokens, block_size):
            size = min(block_size, num_tokens - first)
            hit = min(max(num_cached - first, 0), size)
            self._add(request, request.scopes[first // block_size], size, hit)

    def found_later(self, request: Request, first_block: int, num_blocks: int, block_size: int) -> None:
        """These blocks of a prompt were there by the time that they would have been computed."""
        for index in range(first_block, first_block + num_blocks):
            self._add(request, request.scopes[index], 0, block_size)

    def _add(self, request: Request, scope: Scope, queried: int, hit: int) -> None:
        key = ScopeKey(request.spec.tenant, scope.owner, scope.narrowness)
        tokens = self.scopes.get(key)
        if tokens is None:
            tokens = self.scopes[key] = PromptTokens()
        tokens.queried += queried
        tokens.hit += hit

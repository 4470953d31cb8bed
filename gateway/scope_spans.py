"""Which tokens of a prompt have which scope.

Keys and values depend on all tokens before, so a scope reaches no further than the narrowest of what comes before it:
along a prompt scopes only narrow. That keeps the spans few, and charges no shared namespace for what only one tenant
can reuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from gateway.request import Prompt, SegmentedPrompt
from gateway.scope import CacheScope, RequestScopes, Scope, ScopeLevel, ScopeSpan
from gateway.validation import require, segment_field

Narrowing = list[tuple[int, Scope]]
"""Each scope of a prompt, with the number of segments before it. The first one starts at 0."""


def narrowing(prompt: Prompt | None, stated: CacheScope, scopes: RequestScopes) -> Narrowing:
    """Where along a prompt the scope narrows, and to which.

    Args:
        prompt: The prompt. Segments without content narrow nothing.
        stated: The scope of what does not say it itself.
        scopes: Of this request.

    Raises:
        InvalidArgument: A scope is none that is known.
        PermissionDenied: The caller has not joined a shared namespace.
    """
    default = scopes.resolve(stated, "cache_scope")
    if not isinstance(prompt, SegmentedPrompt):
        return [(0, default)]
    narrowed: Narrowing = []
    for index, segment in enumerate(prompt.segments):
        field = f"{segment_field(index)}.cache_scope"
        own = default if segment.scope is None else scopes.resolve(segment.scope, field)
        if not segment.size:
            continue
        if not narrowed:
            narrowed.append((0, own))
        elif (scope := scopes.narrower(narrowed[-1][1], own)) != narrowed[-1][1]:
            narrowed.append((index, scope))
    return narrowed or [(0, default)]


def check_reusable(prompt: Prompt | None, stated: CacheScope) -> None:
    """Checks that no scope ends with the request that states it.

    Raises:
        InvalidArgument: Naming the first one that does.
    """
    scopes = {"cache_scope": stated}
    if isinstance(prompt, SegmentedPrompt):
        scopes |= {
            f"{segment_field(index)}.cache_scope": segment.scope
            for index, segment in enumerate(prompt.segments)
            if segment.scope is not None
        }
    for field, scope in scopes.items():
        require(scope.level is not ScopeLevel.REQUEST, field, "is this request alone: nobody could reuse what is kept")


def scope_spans(narrowed: Narrowing, counts: Sequence[int], num_tokens: int) -> tuple[ScopeSpan, ...]:
    """The spans of a prompt's tokens.

    Args:
        narrowed: The prompt's scopes.
        counts: For each of them but the first, how many tokens certainly come before it.
        num_tokens: Of the prompt.
    """
    # Less may be certain of a later border; what an earlier one settled stays settled.
    starts = accumulate([0, *counts, num_tokens], max)
    return tuple(
        ScopeSpan(end - start, scope)
        for (start, end), (_, scope) in zip(pairwise(starts), narrowed, strict=True)
        if end > start
    )

"""The prefix trees of all groups as one, with text for those who may read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gateway.scope import ScopeLevel
from octavo.v1 import kvmanager_pb2, monitoring_pb2
from services.gateway.monitoring.groups import Group
from services.gateway.viewers import Viewer
from services.rpc.columns import unpack_int32

TEXT_CHARACTERS = 160
"""Longest text of a node."""

Answer = kvmanager_pb2.KVManagerServiceGetPrefixTreeResponse
Decode = Callable[[Sequence[int]], str]

_SCOPES = {level.value: level.name.lower() for level in ScopeLevel}


def one_tree(
    answers: Sequence[tuple[Group, Answer]], viewer: Viewer, max_nodes: int, decode: Decode
) -> monitoring_pb2.GetPrefixTreeResponse:
    """What a viewer may see of what the groups have told. Takes some milliseconds for each thousand nodes.

    Args:
        answers: only what belongs to owners whose blocks the viewer may see.
        decode: text of token ids.
    """
    found = [(group, cached) for group, answer in answers for cached in answer.nodes]
    chosen = _largest(found, max_nodes)
    left_out = sum(answer.nodes_left_out for _, answer in answers) + len(found) - len(chosen)
    return monitoring_pb2.GetPrefixTreeResponse(
        nodes=[_node(group, cached, viewer, decode) for group, cached in chosen],
        nodes_left_out=left_out,
        scopes=_scopes((scope for _, answer in answers for scope in answer.scopes), viewer),
    )


def _largest(
    found: list[tuple[Group, kvmanager_pb2.CachedPrefix]], number: int
) -> list[tuple[Group, kvmanager_pb2.CachedPrefix]]:
    """A parent has more blocks below it than its children: it is taken before them, and its place is before theirs."""
    order = sorted(range(len(found)), key=lambda index: -found[index][1].blocks_below)
    return [found[index] for index in sorted(order[:number])]


def _node(
    group: Group, cached: kvmanager_pb2.CachedPrefix, viewer: Viewer, decode: Decode
) -> monitoring_pb2.PrefixNode:
    node = cached.node
    node.executor = group.named(node.executor)
    node.scope = _SCOPES.get(cached.narrowness, "")
    # The last character may go on beyond the tokens.
    node.text = decode(unpack_int32(cached.token_ids))[:TEXT_CHARACTERS].rstrip("\N{REPLACEMENT CHARACTER}")
    if viewer.tenant not in (None, node.owner):
        # How often others find what they share is not told.
        node.hits = node.referenced_blocks = 0
    return node


def _scopes(scopes: Iterable[kvmanager_pb2.CachedScope], viewer: Viewer) -> list[monitoring_pb2.ScopeUse]:
    """By owner and scope; what a tenant sees of look-ups is only its own."""
    uses: dict[tuple[str, str], monitoring_pb2.ScopeUse] = {}
    for each in scopes:
        if viewer.tenant is not None and each.tenant not in ("", viewer.tenant):
            continue
        key = each.use.owner, _SCOPES.get(each.narrowness, "")
        use = uses.setdefault(key, monitoring_pb2.ScopeUse(owner=key[0], scope=key[1]))
        use.queried_tokens += each.use.queried_tokens
        use.hit_tokens += each.use.hit_tokens
        use.cached_blocks += each.use.cached_blocks
    return [uses[key] for key in sorted(uses)]

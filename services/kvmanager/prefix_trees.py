"""What the prefix caches of all executors hold: built between steps, and to the wire."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection

from kvmanager.manager import KVManager
from kvmanager.prefix_tree import PrefixNode, PrefixTree, largest, prefix_tree
from kvmanager.replica import Replica
from octavo.v1 import kvmanager_pb2, monitoring_pb2
from services.kvmanager.views_codec import IDENTITY_PREFIX_BYTES


async def cached_prefixes(
    manager: KVManager, owners: Collection[str], max_nodes: int
) -> kvmanager_pb2.KVManagerServiceGetPrefixTreeResponse:
    """The trees of all executors.

    Args:
        owners: whose blocks; empty: everybody's.
    """
    trees = [await _tree(replica, owners) for replica in list(manager.replicas.values())]
    nodes = [node for tree in trees for node in tree.nodes]
    chosen = largest(nodes, max_nodes)
    return kvmanager_pb2.KVManagerServiceGetPrefixTreeResponse(
        nodes=[_encode_node(node) for node in chosen],
        nodes_left_out=len(nodes) - len(chosen),
        scopes=_encode_scopes(manager, trees, owners),
    )


async def _tree(replica: Replica, owners: Collection[str]) -> PrefixTree:
    slices = prefix_tree(replica, owners)
    while True:
        try:
            next(slices)
        except StopIteration as done:
            tree: PrefixTree = done.value
            return tree
        await asyncio.sleep(0)  # steps go on


def _encode_node(node: PrefixNode) -> kvmanager_pb2.CachedPrefix:
    encoded = monitoring_pb2.PrefixNode(
        identity_prefix=node.identity[:IDENTITY_PREFIX_BYTES],
        parent_identity_prefix=node.parent[:IDENTITY_PREFIX_BYTES],
        executor=node.executor,
        num_blocks=node.num_blocks,
        referenced_blocks=node.referenced_blocks,
        host_blocks=node.host_blocks,
        owner=node.scope.owner,
        hits=node.hits,
    )
    return kvmanager_pb2.CachedPrefix(
        node=encoded, narrowness=node.scope.narrowness, token_ids=node.tokens, blocks_below=node.blocks_below
    )


def _encode_scopes(
    manager: KVManager, trees: Collection[PrefixTree], owners: Collection[str]
) -> list[kvmanager_pb2.CachedScope]:
    """First what scopes hold, which is no tenant's alone, then what each tenant has looked for and found."""
    cached = Counter[tuple[str, int]]()
    for tree in trees:
        cached.update(tree.cached_blocks)
    scopes = []
    for (owner, narrowness), number in cached.items():
        use = monitoring_pb2.ScopeUse(owner=owner, cached_blocks=number)
        scopes.append(kvmanager_pb2.CachedScope(use=use, narrowness=narrowness))
    for key, tokens in manager.counters.prefix_use.scopes.items():
        if not owners or key.owner in owners:
            use = monitoring_pb2.ScopeUse(owner=key.owner, queried_tokens=tokens.queried, hit_tokens=tokens.hit)
            scopes.append(kvmanager_pb2.CachedScope(use=use, narrowness=key.narrowness, tenant=key.tenant))
    return scopes

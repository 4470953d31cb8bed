"""What an executor's prefix caches hold, as a tree: blocks one after the other that nothing branches off from are one
node of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator
from dataclasses import dataclass, field

from kvmanager.content import ROOT, Content
from kvmanager.replica import Replica
from kvmanager.spec import Scope

SLICE_BLOCKS = 1000
"""So many blocks are looked at in one go."""

NODE_TOKENS = 64
"""Most tokens of a node that are told."""


@dataclass(slots=True)
class PrefixNode:
    """Blocks one after the other, all of one scope, that no other content branches off from.

    Attributes:
        parent: the identity of the block before; empty where there is none, or none that may be seen.
        identity: of its last block.
        scope: of all of its blocks.
        hits: how often the prefix cache gave out its first block.
        referenced_blocks: those that are in use, in either tier.
        host_blocks: those that are in the host tier only.
        blocks_below: its blocks and those of all nodes that go on from it.
        tokens: its first ones, int32, packed.
    """

    executor: str
    parent: bytes
    identity: bytes
    scope: Scope
    hits: int
    num_blocks: int = 0
    referenced_blocks: int = 0
    host_blocks: int = 0
    blocks_below: int = 0
    tokens: bytes = b""


@dataclass(slots=True)
class PrefixTree:
    """Nodes, parents before their children, and how many blocks each owner has in scopes of each narrowness."""

    nodes: list[PrefixNode] = field(default_factory=list)
    cached_blocks: Counter[tuple[str, int]] = field(default_factory=Counter)


@dataclass(slots=True)
class _Cached:
    """Content that can be given out."""

    content: Content
    hits: int
    referenced: bool
    host_only: bool
    children: list[_Cached] = field(default_factory=list)


def prefix_tree(replica: Replica, owners: Collection[str]) -> Generator[None, None, PrefixTree]:
    """Builds the tree in slices: whoever runs this may do something else after each.

    What is evicted meanwhile may be in it or not. What nobody among `owners` has is left out as if it were not there:
    it splits no node.

    Args:
        owners: whose blocks; empty: everybody's.
    """
    tree = PrefixTree()
    cached = yield from _collect(replica, owners)
    roots: list[_Cached] = []
    for number, each in enumerate(cached.values()):
        if number % SLICE_BLOCKS == 0:
            yield
        scope = each.content.scope
        tree.cached_blocks[scope.owner, scope.narrowness] += 1
        parent = cached.get(each.content.parent)
        (roots if parent is None else parent.children).append(each)
    yield from _add_nodes(tree, replica.name, roots)
    yield from _add_up(tree)
    return tree


def largest(nodes: list[PrefixNode], number: int) -> list[PrefixNode]:
    """So many nodes, those with the most blocks below them, in their order. Of a node its parent is there, too."""
    if len(nodes) <= number:
        return nodes
    # A parent has more below it than each of its children: it is above the least that is taken.
    least = sorted(node.blocks_below for node in nodes)[-number]
    num_equal = number - sum(node.blocks_below > least for node in nodes)
    taken = []
    for node in nodes:
        if node.blocks_below > least:
            taken.append(node)
        elif node.blocks_below == least and num_equal:
            num_equal -= 1
            taken.append(node)
    return taken


def _collect(replica: Replica, owners: Collection[str]) -> Generator[None, None, dict[bytes, _Cached]]:
    cached: dict[bytes, _Cached] = {}
    for tier in (replica.memory.device, replica.memory.host):
        blocks = tier.pool.blocks
        for first in range(0, len(blocks), SLICE_BLOCKS):
            for block in blocks[first : first + SLICE_BLOCKS]:
                content = block.content
                if content is None or (owners and content.scope.owner not in owners):
                    continue
                known = cached.get(content.identity)
                if known is None:
                    in_use = block.reference_count > 0
                    cached[content.identity] = _Cached(content, block.hits, in_use, block.on_host)
                else:
                    known.hits = max(known.hits, block.hits)
                    known.referenced |= block.reference_count > 0
            yield
    return cached


def _add_nodes(tree: PrefixTree, executor: str, roots: list[_Cached]) -> Generator[None, None, None]:
    beginnings = [(ROOT, root) for root in reversed(roots)]
    num_blocks = 0
    while beginnings:
        parent, first = beginnings.pop()
        node = PrefixNode(executor, parent, first.content.identity, first.content.scope, first.hits)
        tree.nodes.append(node)
        block: _Cached | None = first
        while block is not None:
            last = block
            node.num_blocks += 1
            node.referenced_blocks += block.referenced
            node.host_blocks += block.host_only
            if len(node.tokens) < 4 * NODE_TOKENS:
                node.tokens += block.content.tokens
            block = _only_child(block)
            num_blocks += 1
            if num_blocks % SLICE_BLOCKS == 0:
                yield
        node.identity = last.content.identity
        node.tokens = node.tokens[: 4 * NODE_TOKENS]
        beginnings += ((node.identity, child) for child in reversed(last.children))


def _only_child(block: _Cached) -> _Cached | None:
    """What belongs to the same node after a block."""
    if len(block.children) != 1:
        return None
    (child,) = block.children
    return child if child.content.scope == block.content.scope else None


def _add_up(tree: PrefixTree) -> Generator[None, None, None]:
    by_identity = {node.identity: node for node in tree.nodes}
    for number, node in enumerate(reversed(tree.nodes)):
        if number % SLICE_BLOCKS == 0:
            yield
        node.blocks_below += node.num_blocks
        parent = by_identity.get(node.parent)
        if parent is not None:
            parent.blocks_below += node.blocks_below

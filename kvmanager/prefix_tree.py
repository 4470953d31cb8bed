"""What an executor's prefix caches hold, as a tree: blocks one after the other that nothing branches off from are one
node of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator
from dataclasses import dataclass, field

from kvmanager.block import Block
from kvmanager.content import ROOT, Content
from kvmanager.replica import Replica
from kvmanager.spec import Scope

SLICE_BLOCKS = 1000
"""So many blocks are looked at in one go."""

TOKEN_BYTES = 4
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

    def add(self, block: Block, content: Content) -> None:
        """The block that comes next."""
        self.identity = content.identity
        self.num_blocks += 1
        self.referenced_blocks += block.reference_count > 0
        self.host_blocks += block.on_host
        if len(self.tokens) < TOKEN_BYTES * NODE_TOKENS:
            self.tokens = (self.tokens + content.tokens)[: TOKEN_BYTES * NODE_TOKENS]


@dataclass(slots=True)
class PrefixTree:
    """Nodes, parents before their children, and how many blocks each owner has in scopes of each narrowness."""

    nodes: list[PrefixNode] = field(default_factory=list)
    cached_blocks: Counter[tuple[str, int]] = field(default_factory=Counter)


class _Chains:
    """What can be given out, and what goes on from what. Nothing is made for a single block: there are very many.

    Attributes:
        blocks: by identity; the device's where both tiers have one.
        roots: what goes on from nothing that is here.
    """

    def __init__(self) -> None:
        self.blocks: dict[bytes, Block] = {}
        self.roots: list[bytes] = []
        self._child: dict[bytes, bytes] = {}
        self._more_children: dict[bytes, list[bytes]] = {}

    def link(self, identity: bytes, parent: bytes) -> None:
        """Puts a block where it belongs."""
        if parent not in self.blocks:
            self.roots.append(identity)
        elif parent not in self._child:
            self._child[parent] = identity
        else:
            self._more_children.setdefault(parent, []).append(identity)

    def children(self, identity: bytes) -> list[bytes]:
        """What goes on from a block."""
        child = self._child.get(identity)
        return [] if child is None else [child, *self._more_children.get(identity, ())]

    def content(self, identity: bytes) -> Content | None:
        """What a block holds; None: it holds something else by now."""
        content = self.blocks[identity].content
        return content if content is not None and content.identity == identity else None


def prefix_tree(replica: Replica, owners: Collection[str]) -> Generator[None, None, PrefixTree]:
    """Builds the tree in slices: whoever runs this may do something else after each.

    What is evicted meanwhile may be in it or not. What nobody among `owners` has is left out as if it were not there:
    it splits no node.

    Args:
        owners: whose blocks; empty: everybody's.
    """
    tree = PrefixTree()
    chains = yield from _collect(replica, owners)
    for number, identity in enumerate(chains.blocks):
        if number % SLICE_BLOCKS == 0:
            yield
        content = chains.content(identity)
        if content is not None:
            chains.link(identity, content.parent)
            tree.cached_blocks[content.scope.owner, content.scope.narrowness] += 1
    yield from _add_nodes(tree, replica.name, chains)
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


def _collect(replica: Replica, owners: Collection[str]) -> Generator[None, None, _Chains]:
    chains = _Chains()
    for tier in (replica.memory.host, replica.memory.device):
        blocks = tier.pool.blocks
        for first in range(0, len(blocks), SLICE_BLOCKS):
            for block in blocks[first : first + SLICE_BLOCKS]:
                content = block.content
                if content is not None and (not owners or content.scope.owner in owners):
                    chains.blocks[content.identity] = block
            yield
    return chains


def _add_nodes(tree: PrefixTree, executor: str, chains: _Chains) -> Generator[None, None, None]:
    beginnings = [(ROOT, root) for root in reversed(chains.roots)]
    num_blocks = 0
    while beginnings:
        parent, identity = beginnings.pop()
        content = chains.content(identity)
        if content is None:
            continue  # and nothing of what goes on from it can be found any more
        node = PrefixNode(executor, parent, identity, content.scope, chains.blocks[identity].hits)
        tree.nodes.append(node)
        children: list[bytes] = []
        while content is not None and content.scope == node.scope:
            node.add(chains.blocks[content.identity], content)
            children = chains.children(content.identity)
            num_blocks += 1
            if num_blocks % SLICE_BLOCKS == 0:
                yield
            if len(children) != 1:
                break
            content = chains.content(children[0])
        beginnings += ((node.identity, child) for child in reversed(children))


def _add_up(tree: PrefixTree) -> Generator[None, None, None]:
    by_identity = {node.identity: node for node in tree.nodes}
    for number, node in enumerate(reversed(tree.nodes)):
        if number % SLICE_BLOCKS == 0:
            yield
        node.blocks_below += node.num_blocks
        parent = by_identity.get(node.parent)
        if parent is not None:
            parent.blocks_below += node.blocks_below

"""The prefix caches as a tree: what is one node, what is seen by whom, and how often it was found."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Generator

import pytest

from kvmanager import prefix_tree as module
from kvmanager.cost_model import Preemption
from kvmanager.prefix_tree import PrefixNode, PrefixTree, largest, prefix_tree
from kvmanager.prefix_use import PromptTokens, ScopeKey
from kvmanager.spec import Scope
from kvmanager.step import Speeds
from tests.kvmanager.harness import Harness

DOCS = Scope(b"docs", "shared:docs", 0)
ACME = Scope(b"acme", "acme", 1)
APP = Scope(b"acme app", "acme", 2)
BETA = Scope(b"beta", "beta", 1)


def tree_of(h: Harness, owners: Collection[str] = ()) -> PrefixTree:
    def run() -> Generator[None, None, PrefixTree]:
        trees.append((yield from prefix_tree(h.replica, owners)))
        return trees[0]

    trees: list[PrefixTree] = []
    assert all(each is None for each in run())
    return trees[0]


def tokens_of(node: PrefixNode) -> list[int]:
    return array("i", node.tokens).tolist()


def shape(tree: PrefixTree) -> list[tuple[int | None, int, str]]:
    """Of each node, parents first: its parent's place in this list, its blocks, whose it is."""
    places = {node.identity: index for index, node in enumerate(tree.nodes)}
    return [(places.get(node.parent), node.num_blocks, node.scope.owner) for node in tree.nodes]


def places(tree: PrefixTree) -> dict[tuple[bytes, str], int]:
    """Where nodes stand, by parent and owner."""
    return {(node.parent, node.scope.owner): index for index, node in enumerate(tree.nodes)}


def test_what_nothing_branches_off_from_is_one_node():
    h = Harness(num_blocks=64, block_size=4)
    common = h.prompt(20)
    first, second = [*common, *h.prompt(9)], [*common, *h.prompt(5)]
    h.submit(1, first, max_tokens=1)
    h.run()
    assert shape(tree_of(h)) == [(None, 7, "default")]
    h.submit(2, second, max_tokens=1)
    h.run()
    tree = tree_of(h)
    assert sorted(shape(tree), key=str) == [(0, 1, "default"), (0, 2, "default"), (None, 5, "default")]
    assert tokens_of(tree.nodes[0]) == common
    assert [tokens_of(node) for node in sorted(tree.nodes[1:], key=lambda each: -each.num_blocks)] == [
        first[20:28],
        second[20:24],
    ]
    assert tree.nodes[0].blocks_below == 8
    assert tree.cached_blocks == {("default", 0): 8}


def test_hits_are_those_of_the_first_block():
    h = Harness(num_blocks=64, block_size=4)
    common = h.prompt(8)
    for handle in range(4):
        h.submit(handle, [*common, *h.prompt(5)], max_tokens=1)
        h.run()
    h.submit(4, [*common, *h.prompt(5)], max_tokens=1)
    h.submit(5, [*common[:4], *h.prompt(5)], max_tokens=1)
    h.run()
    root = tree_of(h).nodes[0]
    assert (root.num_blocks, root.hits) == (1, 5)
    assert max(node.hits for node in tree_of(h).nodes[1:] if node.parent == root.identity) == 4


def test_content_that_is_evicted_takes_its_hits_with_it():
    h = Harness(num_blocks=8, block_size=4)
    prompt = h.prompt(13)
    for handle in (1, 2):
        h.submit(handle, prompt, max_tokens=1)
        h.run()
    assert tree_of(h).nodes[0].hits == 1
    h.submit(3, h.prompt(29), max_tokens=1)
    h.run()
    assert [node.hits for node in tree_of(h).nodes] == [0]


def test_scopes_part_nodes_and_others_are_not_there_for_those_who_may_not_see_them():
    h = Harness(num_blocks=64, block_size=4)
    docs, question = h.prompt(16), h.prompt(9)
    h.submit(1, [*docs, *question], max_tokens=1, tenant="acme", spans=((16, DOCS), (9, ACME)))
    h.submit(2, [*docs, *question], max_tokens=1, tenant="beta", spans=((16, DOCS), (9, BETA)))
    h.submit(3, [*docs[:8], *question], max_tokens=1, tenant="beta", spans=((8, DOCS), (9, BETA)))
    h.submit(4, question, max_tokens=1, tenant="acme", spans=((9, APP),))
    h.run()
    everything = tree_of(h)
    assert sorted(shape(everything), key=str) == sorted(
        [
            (None, 2, "shared:docs"),
            (0, 2, "shared:docs"),
            (0, 2, "beta"),
            (places(everything)[everything.nodes[0].identity, "shared:docs"], 2, "acme"),
            (places(everything)[everything.nodes[0].identity, "shared:docs"], 2, "beta"),
            (None, 2, "acme"),
        ],
        key=str,
    )
    assert everything.cached_blocks == {("shared:docs", 0): 4, ("acme", 1): 2, ("beta", 1): 4, ("acme", 2): 2}
    # Where beta's blocks go on from is not to be seen.
    assert sorted(shape(tree_of(h, ("acme", "shared:docs"))), key=str) == sorted(
        [(None, 4, "shared:docs"), (0, 2, "acme"), (None, 2, "acme")], key=str
    )
    alone = tree_of(h, ("beta",))
    assert shape(alone) == [(None, 2, "beta"), (None, 2, "beta")]
    assert all(node.parent == b"" for node in alone.nodes)


def test_blocks_in_use_and_in_the_host_tier():
    h = Harness(
        num_blocks=12, block_size=4, num_host_blocks=40, preemption=Preemption.SWAP, speeds=Speeds(1.0, 1e6, 1e6, 1e6)
    )
    first, second = h.prompt(17), h.prompt(41)
    h.submit(1, first, max_tokens=1)
    h.run()
    h.submit(2, second, max_tokens=1)
    h.run()
    by_tokens = {node.tokens: node for node in tree_of(h).nodes}
    assert by_tokens[array("i", first[:16]).tobytes()].host_blocks > 0
    assert sum(node.referenced_blocks for node in by_tokens.values()) == 0
    h.submit(3, second, max_tokens=4)
    h.step()
    by_tokens = {node.tokens: node for node in tree_of(h).nodes}
    assert by_tokens[array("i", second[:40]).tobytes()].referenced_blocks == 10
    h.run_and_check()


@pytest.mark.parametrize("slice_blocks", [1, 3, 1000])
def test_the_largest_nodes_are_taken_and_their_parents_with_them(
    monkeypatch: pytest.MonkeyPatch, slice_blocks: int
) -> None:
    monkeypatch.setattr(module, "SLICE_BLOCKS", slice_blocks)
    h = Harness(num_blocks=400, block_size=2, max_waiting_requests=1000)
    prompts = [h.prompt(6)]
    for handle in range(60):
        base = h.rng.choice(prompts)
        prompts.append([*base[: h.rng.randrange(len(base))], *h.prompt(h.rng.randrange(1, 8))][:100])
        h.submit(handle, prompts[-1], max_tokens=1)
    h.run()
    tree = tree_of(h)
    assert sum(node.num_blocks for node in tree.nodes) == len(h.replica.memory.device.cache)
    sizes = [node.blocks_below for node in tree.nodes]
    for number in range(1, len(tree.nodes) + 2):
        taken = largest(tree.nodes, number)
        assert len(taken) == min(number, len(tree.nodes))
        assert sorted(node.blocks_below for node in taken) == sorted(sizes)[-number:]
        seen = {b""}
        for node in taken:
            assert node.parent in seen
            seen.add(node.identity)


def test_what_is_built_in_slices_may_change_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_BLOCKS", 2)
    h = Harness(num_blocks=24, block_size=2)
    for handle in range(5):
        h.submit(handle, h.prompt(9), max_tokens=1)
    h.run()
    slices = prefix_tree(h.replica, ())
    for handle in range(100, 200):
        if next(slices, "done") == "done":
            break
        h.submit(handle, h.prompt(9), max_tokens=1)
        h.run()
    else:
        raise AssertionError("it never ends")


def test_tokens_that_are_looked_up_and_found_by_tenant_and_scope():
    h = Harness(num_blocks=64, block_size=4)
    docs, question = h.prompt(16), h.prompt(9)
    h.submit(1, [*docs, *question], max_tokens=1, tenant="acme", spans=((16, DOCS), (9, ACME)))
    h.run()
    h.submit(2, [*docs, *question], max_tokens=1, tenant="beta", spans=((16, DOCS), (9, BETA)))
    h.run()
    h.submit(3, [*docs, *question], max_tokens=1, tenant="acme", spans=((16, DOCS), (9, ACME)))
    h.run()
    assert h.counters.prefix_use.scopes == {
        ScopeKey("acme", "shared:docs", 0): PromptTokens(32, 16),
        ScopeKey("acme", "acme", 1): PromptTokens(18, 8),
        ScopeKey("beta", "shared:docs", 0): PromptTokens(16, 16),
        ScopeKey("beta", "beta", 1): PromptTokens(9, 0),
    }


def test_what_is_found_while_others_compute_it_counts_too():
    h = Harness(num_blocks=64, block_size=4, max_batched_tokens=8, max_sequences=4)
    prompt = h.prompt(30)
    for handle in range(3):
        h.submit(handle, prompt, max_tokens=1)
    h.run()
    (use,) = h.counters.prefix_use.scopes.values()
    assert (use.queried, use.hit) == (h.counters.prompt_tokens, h.counters.cached_prompt_tokens)
    assert use.hit > 0

"""What is cached now, in an order in which somebody new can take it in."""

from __future__ import annotations

import random

from kvmanager.cached_blocks import cached_blocks, parents_first
from kvmanager.content import ROOT
from kvmanager.kv_events import BlockStored, Tier
from tests.kvmanager.harness import Harness


def test_each_block_comes_after_the_one_before_it():
    """Also where parents left and came back, and where both tiers hold a block, on any executor."""
    seed = random.randrange(2**32)
    choose = random.Random(seed)
    blocks = []
    for executor in ("one", "two"):
        names = [ROOT]
        for number in range(60):
            name, parent = bytes([1, number]), choose.choice(names)
            tiers = choose.choice(([Tier.DEVICE], [Tier.HOST], [Tier.DEVICE, Tier.HOST]))
            blocks += [BlockStored(executor, tier, name, parent, b"") for tier in tiers]
            names.append(name)
    choose.shuffle(blocks)
    told = parents_first(blocks)
    assert sorted(map(repr, told)) == sorted(map(repr, blocks)), seed
    known: set[tuple[str, bytes]] = {("one", ROOT), ("two", ROOT)}
    for block in told:
        assert (block.executor, block.parent) in known, seed
        known.add((block.executor, block.identity))


def test_a_block_whose_parent_is_gone_is_told_all_the_same():
    child = BlockStored("one", Tier.DEVICE, b"child", b"gone", b"")
    grandchild = BlockStored("one", Tier.DEVICE, b"grandchild", b"child", b"")
    assert parents_first([grandchild, child]) == [child, grandchild]


def test_they_are_those_that_events_told_of():
    h = Harness(num_blocks=12, num_host_blocks=8, block_size=4, num_executors=2)
    for number in range(8):
        h.submit(str(number), h.prompt(4 + 4 * number), max_tokens=3)
        h.run()
    held: dict[tuple[str, Tier, bytes], BlockStored] = {}
    for event in h.manager.kv_events.since(1)[1]:
        key = event.executor, event.tier, event.identity
        if isinstance(event, BlockStored):
            held[key] = event
        else:
            del held[key]
    assert held
    told = parents_first(cached_blocks(h.manager))
    assert len(told) == len(held)
    assert all(held[block.executor, block.tier, block.identity] == block for block in told)

"""Blocks that requests share without having planned to: parts, what others compute now, and duplicates."""

from __future__ import annotations

import pytest

from kvmanager.accounts import Quota
from kvmanager.content import block_identity
from kvmanager.events import EventKind
from kvmanager.spec import Scope
from kvmanager.step import Speeds
from tests.kvmanager.harness import Harness

DOCS = Scope(b"docs", "shared:docs", 0)
ACME = Scope(b"acme", "acme", 1)
BETA = Scope(b"beta", "beta", 1)


def computed_tokens(h: Harness) -> int:
    """Tokens of prompts that were computed."""
    return sum(h.prefilled_tokens(handle) for handle in h.specs)


# A part of a block


def test_the_first_tokens_of_a_partly_matching_block_are_copied():
    h = Harness(block_size=8)
    prompt = h.prompt(24)
    h.submit("first", prompt, max_tokens=1)
    h.run()
    h.submit("second", [*prompt[:13], 1, 2, 3], max_tokens=12)
    batch = h.schedule()
    assert batch is not None
    assert batch.row_num_tokens == [3]
    assert len(batch.block_copies) == 1
    h.run_and_check()
    assert h.usage["second"].cached_tokens == 13


def test_the_block_with_the_longest_common_beginning_is_copied_from():
    h = Harness(block_size=8)
    prompt = h.prompt(8)
    for length in (3, 6, 5):
        h.submit(length, [*prompt[:length], *[49] * (8 - length), 1], max_tokens=1)
        h.run()
    h.submit("last", [*prompt[:7], 48], max_tokens=1)
    h.run_and_check()
    assert h.usage["last"].cached_tokens == 6


def test_a_block_that_is_copied_from_may_be_evicted_in_the_same_step():
    h = Harness(num_blocks=6, block_size=8)
    prompt = h.prompt(16)
    h.submit("first", prompt, max_tokens=1)
    h.run()
    h.submit("second", [*prompt[:12], *h.prompt(28)], max_tokens=1)  # needs all blocks but the first
    h.submit("third", h.prompt(40), max_tokens=1)
    h.run_and_check()


def test_a_part_is_not_copied_where_holding_its_block_would_make_the_request_wait():
    h = Harness(num_blocks=4, block_size=8)
    prompt = h.prompt(8)
    h.submit("first", prompt, max_tokens=1)
    h.run()
    h.submit("second", [*prompt[:5], *h.prompt(26)], max_tokens=1)  # all four blocks
    h.run_and_check()
    assert h.usage["second"].cached_tokens == 0


def test_nothing_is_copied_from_a_block_that_this_very_step_writes():
    """A step copies before it writes."""
    h = Harness(block_size=8)
    prompt = h.prompt(8)
    h.submit("first", [*prompt, 1], max_tokens=1)
    h.submit("second", [*prompt[:5], 2, 3], max_tokens=1)
    batch = h.schedule()
    assert batch is not None
    assert batch.block_copies == []
    h.run_and_check()
    h.submit("third", [*prompt[:5], 4], max_tokens=1)
    h.run_and_check()
    assert h.usage["third"].cached_tokens == 5


def test_nothing_is_copied_where_computing_is_faster():
    h = Harness(block_size=8, speeds=Speeds(prefill_tokens_per_s=1000.0, copy_blocks_per_s=200.0))
    prompt = h.prompt(8)
    h.submit("first", prompt, max_tokens=1)
    h.run()
    h.submit("five", [*prompt[:5], 49], max_tokens=1)
    h.submit("six", [*prompt[:6], 49], max_tokens=1)
    h.run_and_check()
    assert h.usage["five"].cached_tokens == 0
    assert h.usage["six"].cached_tokens == 6


def test_a_part_of_the_answer_can_be_reused_too():
    h = Harness(block_size=4)
    prompt = h.prompt(6)
    h.submit("turn 1", prompt, max_tokens=7)
    h.run()
    turn_2 = prompt + h.output["turn 1", 0][:5] + [49, 49]
    h.submit("turn 2", turn_2, max_tokens=1)
    h.run_and_check()
    assert h.usage["turn 2"].cached_tokens == 11


# What another request computes now


@pytest.mark.parametrize("num_requests", [2, 3, 5])
def test_chunked_prompts_that_arrive_together_compute_each_block_once(num_requests):
    h = Harness(block_size=4, max_batched_tokens=16)
    common = h.prompt(64)
    for index in range(num_requests):
        h.submit(index, [*common, index, index, index], max_tokens=4)
    h.run_and_check()
    assert computed_tokens(h) == 64 + 3 * num_requests
    assert h.counters.cached_prompt_tokens == 64 * (num_requests - 1)
    assert h.counters.peak_referenced_blocks <= 16 + 3 * num_requests


def test_a_request_behind_takes_over_what_one_ahead_has_computed_meanwhile():
    """It was admitted with nothing cached, and meets the other's blocks as it goes."""
    h = Harness(num_blocks=100, block_size=4, max_batched_tokens=12, max_sequences=4)
    common = h.prompt(60)
    h.submit("ahead", [*h.prompt(4), *common], max_tokens=1, seed=1)
    h.submit("a", [*common, 1], max_tokens=2)
    h.submit("b", [*common, 2], max_tokens=2)
    h.run_and_check()
    assert computed_tokens(h) == 64 + 62
    assert h.usage["b"].cached_tokens == 60


def test_a_prompt_whose_first_blocks_are_gone_computes_these_alone():
    """The rest is still there, of an owner that had less above its share: met block by block, it is taken over."""
    h = Harness(num_blocks=40, block_size=4, max_batched_tokens=8, max_sequences=4)
    prompt = h.prompt(33)
    h.submit("first", prompt, max_tokens=1, spans=((8, DOCS), (25, ACME)))
    h.submit("more", h.prompt(80), max_tokens=1, scope=DOCS)
    h.run()
    h.submit("evicts", h.prompt(56), max_tokens=1, scope=BETA)
    h.run()
    h.submit("second", prompt, max_tokens=3, spans=((8, DOCS), (25, ACME)))
    h.run_and_check()
    assert h.prefilled_tokens("second") == 8 + 1
    assert h.usage["second"].cached_tokens == 24


def test_siblings_that_come_back_fill_the_blocks_that_they_share():
    """The one that computes their prompt again meets its last blocks in the cache, but the others have its own."""
    quotas = {"shared:docs": Quota(weight=0.001), "acme": Quota(weight=1000.0)}
    h = Harness(num_blocks=17, block_size=4, max_batched_tokens=8, max_sequences=8, quotas=quotas)
    h.submit("old", h.prompt(4), max_tokens=11, n=4)
    h.submit("group", h.prompt(25), max_tokens=6, n=2, spans=((8, DOCS), (17, ACME)))
    h.run_and_check()
    assert h.details(EventKind.PREEMPTED, "group") == ["recompute"]
    assert h.prefilled_tokens("group") > 25 + 16


# Duplicates


def test_two_that_computed_the_same_blocks_end_up_sharing_them():
    """The same seed: the answers' blocks are the same too, and neither knew beforehand."""
    h = Harness(block_size=4)
    prompt = h.prompt(8)
    for name in ("a", "b"):
        h.submit(name, prompt, max_tokens=20, seed=3)
    for _ in range(16):
        h.step()
    h.finish_steps()
    h.schedule()
    a, b = h.table("a"), h.table("b")
    assert len(a) >= 6
    assert a[:-2] == b[:-2]
    h.run_and_check()
    assert h.counters.peak_referenced_blocks <= 10


def test_duplicates_are_not_merged_with_blocks_that_nobody_holds():
    """That would cost memory for a while, and save none."""
    h = Harness(block_size=4)
    prompt = h.prompt(8)
    h.submit("first", prompt, max_tokens=20, seed=3)
    h.run()
    h.submit("second", prompt[:7], max_tokens=1)
    h.submit("again", prompt, max_tokens=20, seed=3)
    available = []
    while not h.manager.idle:
        h.step()
        available.append(h.replica.memory.pool.num_available)
    assert h.replica.memory.pool.num_referenced == 0
    h.check_answers()
    assert min(available) >= 64 - 7 - 2


def test_a_merged_block_waits_for_the_steps_that_may_still_touch_it():
    h = Harness(num_blocks=13, block_size=2)
    prompt = h.prompt(4)
    for name in ("a", "b", "c"):
        h.submit(name, prompt, max_tokens=14, seed=3)
    h.run_and_check()


def test_siblings_keep_sharing_a_block_that_another_request_has_too():
    """If one of them went over to the other's block, they would hold two where they were admitted for one."""
    h = Harness(block_size=4, max_batched_tokens=4, max_sequences=4)
    prompt = h.prompt(8)
    h.submit("other", prompt, max_tokens=20)
    h.step()
    h.submit("group", prompt, max_tokens=9, n=2)
    for _ in range(5):
        h.step()
    first, second = (h.table("group", index)[:2] for index in range(2))
    other = h.table("other")[:2]
    assert first == second
    assert (first[0] == other[0], first[1] == other[1]) == (True, False), "all of it was computed but its last token"
    h.run_and_check()


def test_samples_that_agree_are_merged_and_part_again():
    """Stop tokens aside, two sequences of one request rarely agree; two requests with one seed always do."""
    h = Harness(num_blocks=40, block_size=2, max_sequences=8)
    prompt = h.prompt(5)
    for name in ("a", "b"):
        h.submit(name, prompt, max_tokens=16, n=3, seed=3)
    h.run_and_check()
    assert [h.output["a", index] for index in range(3)] == [h.output["b", index] for index in range(3)]
    assert h.counters.peak_referenced_blocks < 2 * (2 + 3 * 9)


def test_without_prefix_caching_nothing_is_shared_between_requests():
    h = Harness(block_size=4, prefix_caching=False, max_batched_tokens=16)
    prompt = h.prompt(40)
    for name in ("a", "b"):
        h.submit(name, prompt, max_tokens=8, seed=3)
    h.step()
    assert not set(h.table("a")) & set(h.table("b"))
    h.run_and_check()
    assert computed_tokens(h) == 80
    assert h.counters.cached_prompt_tokens == 0


def test_identities_are_made_once_for_each_block():
    """Hashing is most of what a long prompt costs here."""
    calls = 0

    def identify(parent: bytes, tokens: bytes, salt: bytes, adapter: bytes = b"") -> bytes:
        nonlocal calls
        calls += 1
        return block_identity(parent, tokens, salt, adapter)

    h = Harness(num_blocks=30, block_size=4, max_batched_tokens=16, identify=identify)
    h.submit("running", h.prompt(20), max_tokens=60)
    h.step()
    before = calls
    h.submit("waits", h.prompt(80), max_tokens=4)
    for _ in range(10):
        h.step()
    assert calls - before <= 20 + 6
    h.run_and_check()

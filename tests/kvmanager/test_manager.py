"""What the KV manager promises, one promise a test."""

from __future__ import annotations

import random

import pytest

from kvmanager.errors import DeadlineExceeded, InvalidRequest, OutOfOrder, QueueFull
from kvmanager.events import EventKind
from kvmanager.limits import Limits
from kvmanager.request import FinishReason
from kvmanager.step import StepResult
from tests.kvmanager.harness import FIRST, Harness


def test_tokens_arrive_in_order_and_all_blocks_come_back():
    h = Harness()
    h.submit("a", h.prompt(10), max_tokens=9)
    h.run()
    assert h.output["a", 0] == h.expected("a")
    assert h.reasons["a", 0] is FinishReason.LENGTH
    assert h.usage["a"].prompt_tokens == 10
    assert h.usage["a"].completion_tokens == 9
    assert h.referenced_blocks == 0


def test_a_stop_token_ends_the_sequence_and_the_token_under_way_is_dropped():
    h = Harness()
    prompt = h.prompt(6)
    h.submit("probe", prompt, max_tokens=20)
    h.run()
    stop = h.output["probe", 0][7]
    first = h.output["probe", 0].index(stop)
    # The same seed, so the same tokens up to the stop token.
    h.submit("probe", prompt, max_tokens=20, stop_token_ids=frozenset([stop]))
    h.output.clear()
    h.reasons.clear()
    h.run()
    assert len(h.output["probe", 0]) == first + 1
    assert h.reasons["probe", 0] is FinishReason.STOP


def test_no_stop_token_counts_before_min_tokens():
    h = Harness()
    h.submit("a", h.prompt(5), max_tokens=10, min_tokens=10, stop_token_ids=frozenset(range(50)))
    h.run()
    assert len(h.output["a", 0]) == 10


def test_two_steps_are_under_way_at_once_and_a_third_is_not_built():
    h = Harness()
    h.submit("a", h.prompt(5), max_tokens=10)
    assert h.schedule() is not None
    second = h.schedule()
    assert second is not None
    assert second.row_num_tokens == [1]  # the token that the first step has yet to sample
    assert h.schedule() is None


def test_later_rows_carry_only_what_changed():
    h = Harness(block_size=4)
    h.submit("a", h.prompt(8), max_tokens=10)
    first = h.schedule()
    assert first is not None
    assert len(first.new_sequences[0].block_table) == 2
    second = h.schedule()
    assert second is not None
    assert second.new_sequences == []
    assert [edit[:2] for edit in second.table_edits] == [(first.row_sequence_ids[0], 2)]
    h.result()
    third = h.schedule()
    assert third is not None
    assert third.table_edits == []


def test_decodes_come_before_prefill_chunks_within_one_budget():
    h = Harness(max_batched_tokens=16, max_sequences=8)
    h.submit("decoding", h.prompt(4), max_tokens=50)
    h.step()
    h.submit("long", h.prompt(40), max_tokens=2)
    h.result()
    batch = h.schedule()
    assert batch is not None
    assert batch.row_num_tokens == [1, 15]
    h.run()
    h.check_answers()


def test_a_prompt_waits_until_all_of_it_fits():
    h = Harness(num_blocks=10, block_size=4, max_batched_tokens=8, max_sequences=4, prefix_caching=False)
    h.submit("first", h.prompt(20), max_tokens=12)
    h.step()
    h.submit("second", h.prompt(24), max_tokens=2)  # its first chunk would fit, the whole prompt does not
    h.step()
    assert ("second", "blocks") in [(e.handle, e.detail) for e in h.events if e.kind is EventKind.WAITED]
    h.run()
    assert h.manager.counters.preemptions == 0
    h.check_answers()


def test_what_waits_for_memory_starts_as_soon_as_there_is_enough():
    h = Harness(num_blocks=13, block_size=4)
    h.submit("long", h.prompt(8), max_tokens=20)
    h.submit("short", h.prompt(16), max_tokens=4)
    h.step()
    h.submit("waits", h.prompt(24), max_tokens=2)
    h.step()
    assert ("waits", "blocks") in [(e.handle, e.detail) for e in h.events if e.kind is EventKind.WAITED]
    h.run()
    h.check_answers()
    assert [e.handle for e in h.events if e.kind is EventKind.FINISHED] == ["short", "waits", "long"]


def test_a_request_may_have_all_of_a_large_pool_but_not_beside_others():
    """A hundredth is kept back from new requests, so that they do not at once preempt themselves."""
    h = Harness(num_blocks=200, block_size=4, max_model_len=1000, max_batched_tokens=1000)
    h.submit("small", h.prompt(4), max_tokens=2)
    h.submit("nearly all", h.prompt(198 * 4), max_tokens=2)
    h.step()
    assert [e.handle for e in h.events if e.kind is EventKind.ADMITTED] == ["small"]
    h.run()
    h.submit("all", h.prompt(199 * 4), max_tokens=4)
    h.run()
    h.check_answers()
    assert len(h.usage) == 3


def test_nobody_takes_the_memory_that_the_first_in_line_is_waiting_for():
    h = Harness(num_blocks=6, block_size=4, prefix_caching=False)
    h.submit("first", h.prompt(8), max_tokens=4, n=2)
    h.submit("second", h.prompt(8), max_tokens=4)
    h.submit("leaves", h.prompt(4), max_tokens=4)
    h.schedule()
    h.manager.abort("leaves", h.now)
    forgets = h.schedule()  # one block is free and one will be: the first needs two, the second one
    assert forgets is not None
    assert forgets.row_sequence_ids == []
    h.result()
    goes_on = h.schedule()
    assert goes_on is not None
    assert goes_on.row_sequence_ids == [each.sequence_id for each in h.manager._requests["first"].sequences]
    h.run()
    h.check_answers()
    assert len(h.usage) == 2


def test_first_come_first_served():
    h = Harness(num_blocks=12, block_size=4, max_sequences=4)
    h.submit("running", h.prompt(30), max_tokens=10)
    h.step()
    h.submit("large", h.prompt(20), max_tokens=2)
    h.submit("small", h.prompt(2), max_tokens=2)
    h.run()
    admitted = [event.handle for event in h.events if event.kind is EventKind.ADMITTED]
    assert admitted.index("large") < admitted.index("small")


def test_the_latest_arrival_is_preempted_and_nothing_changes_in_any_output():
    h = Harness(num_blocks=12, block_size=2, max_sequences=8)
    for name in ("a", "b", "c"):
        h.submit(name, h.prompt(6), max_tokens=14)
    h.run()
    preempted = [event.handle for event in h.events if event.kind is EventKind.PREEMPTED]
    assert preempted
    assert preempted[0] == "c"
    assert "a" not in preempted
    assert len(h.usage) == 3
    h.check_answers()


def test_n_samples_are_one_prefill_and_share_every_prompt_block():
    h = Harness(block_size=4)
    h.submit("a", h.prompt(10), max_tokens=6, n=4)
    first = h.schedule()
    assert first is not None
    assert first.row_num_tokens == [10]
    assert h.referenced_blocks == 3
    second = h.schedule()
    assert second is not None
    assert second.row_num_tokens == [1, 1, 1, 1]
    # Two full blocks stay shared; of the partly filled one three copies are made, the fourth holder writes in place.
    assert len(second.block_copies) == 3
    assert h.referenced_blocks == 2 + 4
    h.run()
    assert [h.output["a", i] for i in range(4)] == [h.expected("a", i) for i in range(4)]
    assert h.usage["a"].completion_tokens == 24
    assert h.referenced_blocks == 0


def test_sixty_four_samples():
    h = Harness(num_blocks=200, block_size=4, max_batched_tokens=64, max_sequences=64)
    h.submit("a", h.prompt(21), max_tokens=6, n=64)
    h.run_and_check()
    assert h.prefilled_tokens("a") == 21
    assert h.counters.peak_referenced_blocks == 5 + 64 * 2
    assert len({tuple(h.output["a", index]) for index in range(64)}) == 64


def test_a_preempted_group_comes_back_whole_and_shares_its_prompt_again():
    h = Harness(num_blocks=16, block_size=2, max_sequences=8, prefix_caching=False)
    h.submit("a", h.prompt(4), max_tokens=20)
    h.submit("group", h.prompt(9), max_tokens=6, n=3)
    h.run()
    assert any(e.handle == "group" for e in h.events if e.kind is EventKind.PREEMPTED)
    h.check_answers()
    assert len(h.usage) == 2


def test_siblings_that_come_back_wait_until_their_shared_prompt_is_computed_again():
    h = Harness(num_blocks=28, block_size=2, max_batched_tokens=8, max_sequences=8, prefix_caching=False)
    h.submit("old", h.prompt(4), max_tokens=36)
    h.submit("group", h.prompt(31), max_tokens=7, n=2)  # four chunks to compute its prompt
    h.run()
    assert any(e.handle == "group" for e in h.events if e.kind is EventKind.PREEMPTED)
    assert len(h.usage) == 2
    h.check_answers()


def test_a_sibling_that_ends_while_others_wait_for_it_does_not_hold_them_up():
    h = Harness(num_blocks=28, block_size=2, max_batched_tokens=8, max_sequences=8, prefix_caching=False)
    h.submit("old", h.prompt(4), max_tokens=36)
    h.submit("group", h.prompt(31), max_tokens=7, n=2)

    def followers():
        return [s for s in h.replica.scheduler.live_sequences() if s.leader and s.leader.num_computed < s.leader_tokens]

    while not followers():
        h.step()
    h.take(h.manager.abort("group", h.now, sample_index=0))
    h.run()
    assert h.output["group", 1] == h.expected("group", 1)
    assert h.output["old", 0] == h.expected("old")


def test_a_group_that_just_fits_runs():
    h = Harness(num_blocks=4, block_size=4, max_sequences=4)
    h.submit("a", h.prompt(6), max_tokens=3, n=3)
    h.run()
    h.check_answers()
    assert h.manager.counters.preemptions == 0


def test_a_prefix_is_computed_once_even_by_requests_that_arrive_together():
    h = Harness(block_size=4)
    common = h.prompt(16)
    for name in range(3):
        h.submit(name, common + h.prompt(3), max_tokens=4)
    batch = h.schedule()
    assert batch is not None
    assert batch.row_num_tokens == [19, 3, 3]
    h.run()
    h.check_answers()
    assert [h.usage[name].cached_tokens for name in range(3)] == [0, 16, 16]


def test_a_prompt_that_is_cached_whole_still_computes_its_last_token():
    h = Harness(block_size=4)
    prompt = h.prompt(16)
    h.submit("a", prompt, max_tokens=3)
    h.run()
    h.submit("b", prompt, max_tokens=3)
    h.run()
    h.check_answers()
    assert h.usage["b"].cached_tokens == 15  # of the last block all but one are copied


def test_another_salt_finds_nothing():
    h = Harness(block_size=4)
    prompt = h.prompt(12)
    h.submit("a", prompt, salt=b"one")
    h.run()
    h.submit("b", prompt, salt=b"two")
    h.submit("c", prompt, salt=b"one")
    h.run()
    assert h.usage["b"].cached_tokens == 0
    assert h.usage["c"].cached_tokens == 11


def test_prefix_caching_can_be_off():
    h = Harness(block_size=4, prefix_caching=False)
    prompt = h.prompt(12)
    for name in ("a", "b"):
        h.submit(name, prompt)
        h.run()
    assert h.usage["b"].cached_tokens == 0
    assert h.replica.memory.pool.num_cached == 0


def test_output_is_reused_by_the_next_turn_of_a_conversation():
    h = Harness(block_size=4)
    prompt = h.prompt(8)
    h.submit("turn 1", prompt, max_tokens=9)
    h.run()
    h.submit("turn 2", prompt + h.output["turn 1", 0] + h.prompt(3), max_tokens=2)
    h.run()
    assert h.usage["turn 2"].cached_tokens == 16  # the last sampled token was never fed back
    h.check_answers()


def test_freed_blocks_wait_for_the_steps_that_may_still_touch_them():
    h = Harness(block_size=4)
    h.submit("a", h.prompt(10), max_tokens=20)
    h.schedule()
    h.schedule()
    h.manager.abort("a", h.now)
    assert h.referenced_blocks == 3
    h.result()
    assert h.referenced_blocks == 3
    h.result()
    assert h.referenced_blocks == 0


@pytest.mark.parametrize("num_steps", range(8))
def test_abort_at_any_point_frees_everything_within_the_steps_under_way(num_steps):
    h = Harness(block_size=4, max_batched_tokens=16, max_sequences=8)
    h.submit("stays", h.prompt(5), max_tokens=30)
    h.submit("goes", h.prompt(40), max_tokens=30, n=3)
    for _ in range(num_steps):
        h.step()
    h.manager.abort("goes", h.now)
    h.manager.check_integrity()
    while h.oracle.pending:
        h.result()
    others = sum(len(s.table) for s in h.replica.scheduler.live_sequences())
    assert h.referenced_blocks == others
    h.run()
    assert h.output["stays", 0] == h.expected("stays")
    assert "goes" not in h.usage
    assert h.referenced_blocks == 0


def test_a_sequence_that_its_gateway_ends_leaves_its_siblings_alone():
    h = Harness()
    h.submit("a", h.prompt(7), max_tokens=12, n=3)
    for _ in range(4):
        h.step()
    h.take(h.manager.abort("a", h.now, sample_index=1))
    ended = len(h.output["a", 1])
    h.run()
    assert len(h.output["a", 1]) == ended
    assert h.output["a", 0] == h.expected("a", 0)
    assert h.output["a", 2] == h.expected("a", 2)
    assert h.usage["a"].completion_tokens == 24 + ended


def test_deadlines_hold_in_the_queue_and_while_running():
    h = Harness(num_blocks=8, block_size=4, max_sequences=4)
    h.submit("running", h.prompt(20), max_tokens=12, deadline=5.0)
    h.step()
    h.submit("queued", h.prompt(16), max_tokens=4, deadline=3.0)
    assert h.manager.next_deadline() == 3.0
    h.now = 3.0
    h.take(h.manager.expire(h.now))
    assert isinstance(h.errors.pop("queued"), DeadlineExceeded)
    h.now = 5.0
    h.take(h.manager.expire(h.now))
    assert isinstance(h.errors.pop("running"), DeadlineExceeded)
    h.run()
    assert h.referenced_blocks == 0


def test_a_name_that_is_free_again_may_be_used_at_once():
    h = Harness(num_blocks=8, block_size=4, max_sequences=4)
    h.submit("running", h.prompt(20), max_tokens=8)
    h.step()
    for _ in range(3):
        h.submit("a", h.prompt(16), max_tokens=4)
        h.step()
        h.abort("a")
    h.submit("a", h.prompt(12), max_tokens=4)
    h.run_and_check()
    assert h.handles(EventKind.ADMITTED) == ["running", "a"]


def test_a_result_out_of_order_is_refused():
    h = Harness()
    h.submit("a", h.prompt(5))
    h.schedule()
    with pytest.raises(OutOfOrder):
        h.manager.apply(FIRST, StepResult(2, [], []), h.now)
    h.run()
    h.check_answers()


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": [1] * 200}, "prompt", "200"),
        ({"prompt": [1] * 100, "max_tokens": 101}, "sampling.max_tokens", "100"),
        ({"prompt": [1] * 8, "max_tokens": 100, "n": 16}, "sampling.max_tokens", "16 sequence"),
        ({"prompt": [1] * 8, "max_tokens": -1}, "sampling.max_tokens", "negative"),
        ({"prompt": [1] * 8, "n": 17}, "sampling.n", "16"),
        ({"prompt": [1] * 8, "n": 0}, "sampling.n", "1"),
    ],
)
def test_what_can_never_be_served_is_refused_and_leaves_nothing(options, field, words):
    h = Harness(num_blocks=64, block_size=4, max_model_len=200, max_sequences=16)
    with pytest.raises(InvalidRequest, match=words) as caught:
        h.submit("a", **options)
    assert caught.value.field == field
    assert h.manager.idle
    assert h.schedule() is None


def test_without_max_tokens_a_request_gets_what_fits():
    h = Harness(num_blocks=8, block_size=4, max_model_len=30)
    h.submit("alone", h.prompt(10), max_tokens=0)
    h.run()
    assert len(h.output["alone", 0]) == 20
    h.submit("two", h.prompt(10), max_tokens=0, n=2)
    h.run()
    # 2 shared blocks, 3 for each sequence; the last token needs no slot.
    assert len(h.output["two", 0]) == 5 * 4 + 1 - 10


def test_a_full_queue_refuses():
    h = Harness(max_waiting_requests=2)
    for name in range(2):
        h.submit(name, h.prompt(3))
    with pytest.raises(QueueFull, match="2"):
        h.submit("late", h.prompt(3))
    h.run()
    assert len(h.usage) == 2


def test_a_budget_below_the_sequence_limit_is_refused():
    with pytest.raises(ValueError, match="max_sequences"):
        Limits(max_batched_tokens=8, max_sequences=16, max_waiting_requests=1)


def test_waste_is_counted():
    h = Harness(num_blocks=64, block_size=4)
    h.submit("a", h.prompt(8), max_tokens=1)
    h.run()
    assert h.manager.counters.slot_steps == 8
    assert h.manager.counters.internal_slot_steps == 0
    h = Harness(num_blocks=64, block_size=4)
    h.submit("b", h.prompt(9), max_tokens=1)
    h.run()
    assert h.manager.counters.slot_steps == 12
    assert h.manager.counters.internal_slot_steps == 3
    assert h.manager.counters.peak_referenced_blocks == 3


def test_two_thousand_requests_in_a_pool_that_is_always_short():
    """Load beyond memory for long: every answer is right, and nothing is missing at the end."""
    rng = random.Random()
    h = Harness(num_blocks=60, block_size=4, max_batched_tokens=48, max_sequences=12, seed=rng.randrange(2**32))
    prefixes = [h.prompt(rng.randrange(4, 60)) for _ in range(5)]
    submitted = 0
    while submitted < 2000:
        while len(h.replica.scheduler.waiting) < 20:
            prompt = rng.choice(prefixes)[: rng.randrange(60)] + h.prompt(rng.randrange(1, 30))
            stop = frozenset(rng.sample(range(50), 2))
            h.submit(submitted, prompt, rng.randrange(1, 40), n=rng.choice([1, 1, 1, 2, 3]), stop_token_ids=stop)
            submitted += 1
        h.schedule()
        h.schedule()
        if rng.random() < 0.05:
            h.manager.abort(rng.randrange(max(0, submitted - 40), submitted), h.now)
        h.take(h.manager.apply(FIRST, h.oracle.run(), h.now))
    h.run()
    h.check_answers()
    counters = h.manager.counters
    assert len(h.usage) > 1500
    assert counters.preemptions > 50
    assert counters.cached_prompt_tokens > 1000
    assert counters.copied_blocks > 100
    assert h.referenced_blocks == 0

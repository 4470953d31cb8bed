"""Beam search on block tables (section 4.4), and `best_of`: sequences that are ranked at the end.

Which beams go on is tests/kvmanager/test_beam_search.py's affair.
"""

from __future__ import annotations

import pytest

from kvmanager.cost_model import Preemption
from kvmanager.events import EventKind
from kvmanager.request import FinishReason
from kvmanager.spec import BeamParams, EarlyStopping
from tests.kvmanager.harness import Harness


def beams_of(h: Harness, handle: str = "beams") -> list[list[int]]:
    """The living beams' block tables."""
    return [[block.block_id for block in beam.table] for beam in h.request(handle).unfinished()]


def check_scores(h: Harness, handle: str = "beams") -> None:
    wanted = h.expected_beams(handle)
    assert [h.scores[handle, index] for index in range(len(wanted))] == pytest.approx([each.score for each in wanted])


# Blocks


def test_beams_are_one_prefill_and_a_fork_copies_no_full_block():
    h = Harness(block_size=4)
    h.submit("beams", h.prompt(8), max_tokens=6, n=2, beam=BeamParams(4))
    prefill = h.schedule()
    assert prefill is not None
    assert prefill.row_num_tokens == [8]
    assert h.schedule() is None, "nothing can go on before the candidates are here"
    h.result()
    assert len(beams_of(h)) == 4
    assert h.referenced_blocks == 2, "four tables, no new block"
    decode = h.schedule()
    assert decode is not None
    assert len(decode.branches) == 3
    assert decode.block_copies == []
    assert decode.row_num_tokens == [1, 1, 1, 1]
    assert h.referenced_blocks == 2 + 4
    h.run_and_check()


def test_only_a_shared_partly_filled_block_is_copied_and_the_last_beam_writes_in_place():
    h = Harness(block_size=4)
    h.submit("beams", h.prompt(10), max_tokens=6, n=2, beam=BeamParams(4))
    h.schedule()
    h.result()
    assert h.referenced_blocks == 3
    decode = h.schedule()
    assert decode is not None
    assert len(decode.block_copies) == 3
    assert len({destination for _, destination in decode.block_copies}) == 3
    assert h.referenced_blocks == 2 + 4
    h.run_and_check()


def test_beams_share_every_block_of_their_common_past():
    h = Harness(block_size=2)
    h.submit("beams", h.prompt(6), max_tokens=12, n=4, beam=BeamParams(4))
    while not h.manager.idle:
        h.schedule()
        h.finish_steps()
        if h.manager.idle:
            break
        sequences = h.request("beams").unfinished()
        for one in sequences:
            for other in sequences:
                common = 0
                while (common + 1) * 2 <= min(one.num_computed, other.num_computed) and one.token_ids[
                    : (common + 1) * 2
                ] == other.token_ids[: (common + 1) * 2]:
                    common += 1
                # Two that found the same tokens by themselves are merged a step later.
                assert [block.block_id for block in one.table[: common - 1]] == [
                    block.block_id for block in other.table[: common - 1]
                ]
    h.run_and_check()


def test_a_dropped_beam_frees_its_blocks_at_once():
    h = Harness(block_size=2, prefix_caching=False)
    h.submit("beams", h.prompt(5), max_tokens=16, n=4, beam=BeamParams(4))
    dropped = 0
    ids: set[int] = set()
    while not h.manager.idle:
        h.schedule()
        h.finish_steps()
        if h.manager.idle:
            break
        alive = {beam.sequence_id for beam in h.request("beams").sequences}
        dropped += len(ids - alive)
        ids = alive
        held = {block for table in beams_of(h) for block in table}
        assert h.referenced_blocks == len(held)
    assert dropped > 0
    h.run_and_check()


def test_a_beam_search_needs_no_more_than_it_was_admitted_for():
    h = Harness(num_blocks=4 * 3 + 2, block_size=4)
    h.submit("beams", h.prompt(8), max_tokens=13, n=4, beam=BeamParams(4))
    h.run_and_check()
    assert h.counters.preemptions == 0
    assert h.counters.peak_referenced_blocks <= 14


def test_what_beams_have_computed_is_found_by_others():
    h = Harness(block_size=4)
    prompt = h.prompt(8)
    h.submit("beams", prompt, max_tokens=13, n=2, beam=BeamParams(3))
    h.run()
    h.submit("next turn", prompt + h.output["beams", 0] + h.prompt(3), max_tokens=2)
    h.run_and_check()
    assert h.usage["next turn"].cached_tokens >= 16


# With others


def test_beams_do_not_stall_the_pipelined_steps_of_others():
    h = Harness(block_size=4)
    h.submit("other", h.prompt(5), max_tokens=30)
    h.submit("beams", h.prompt(6), max_tokens=10, n=2, beam=BeamParams(3))
    other = h.request("other").sequences[0].sequence_id
    h.schedule()
    h.schedule()
    num_beam_steps = 0
    for _ in range(24):
        h.result()
        batch = h.schedule()
        assert batch is not None, "two steps are under way all the time"
        assert other in batch.row_sequence_ids
        num_beam_steps += len(batch.row_sequence_ids) > 1
    assert 8 <= num_beam_steps <= 12, "every second step is the beams' too"
    h.run_and_check()


def test_every_method_of_decoding_in_one_batch():
    h = Harness(num_blocks=100, block_size=4, max_sequences=32)
    prompt = h.prompt(9)
    h.submit("one", prompt, max_tokens=10)
    h.submit("samples", prompt, max_tokens=10, n=3)
    h.submit("best of", prompt, max_tokens=10, n=2, best_of=4)
    h.submit("beams", prompt, max_tokens=10, n=3, beam=BeamParams(3))
    h.schedule()
    h.result()
    batch = h.schedule()
    assert batch is not None
    assert len(batch.row_sequence_ids) == 1 + 3 + 4 + 3
    h.run_and_check()
    check_scores(h)


@pytest.mark.parametrize("early_stopping", list(EarlyStopping))
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
def test_ids_and_scores_are_those_of_the_search_without_blocks(length_penalty, early_stopping):
    h = Harness(block_size=3)
    beam = BeamParams(3, length_penalty, early_stopping)
    h.submit("beams", h.prompt(7), max_tokens=12, n=3, beam=beam, stop_token_ids=frozenset(range(0, 50, 7)))
    h.run_and_check()
    check_scores(h)


def test_the_widest_search():
    h = Harness(num_blocks=400, block_size=4, max_sequences=32)
    h.submit("beams", h.prompt(10), max_tokens=10, n=32, beam=BeamParams(32))
    h.run_and_check()
    check_scores(h)


def test_beams_come_at_the_end_with_their_reasons_and_count_as_output():
    h = Harness()
    h.submit("beams", h.prompt(7), max_tokens=6, n=2, beam=BeamParams(3))
    while "beams" not in h.usage:
        assert not h.output
        h.step()
    assert h.usage["beams"].completion_tokens == 12
    assert [h.reasons["beams", index] for index in range(2)] == [FinishReason.LENGTH] * 2


# Preempted and resumed


@pytest.mark.parametrize("max_tokens", [8, 9])
@pytest.mark.parametrize("way", ["swap", "recompute", "loss"])
def test_a_preempted_search_goes_on_where_it_was(way, max_tokens):
    preemption = Preemption.SWAP if way == "swap" else Preemption.RECOMPUTE
    h = Harness(64 if way == "loss" else 19, block_size=2, num_host_blocks=60, preemption=preemption)
    h.submit("old", h.prompt(4), max_tokens=28)
    h.submit("beams", h.prompt(7), max_tokens=max_tokens, n=3, beam=BeamParams(3))
    if way == "loss":
        for _ in range(4):
            for _ in range(3):
                h.step()
            if "beams" not in h.usage:
                h.lose_and_return()
    h.run_and_check()
    check_scores(h)
    expected = {"swap": "swap", "recompute": "recompute", "loss": "executor lost"}[way]
    assert expected in h.details(EventKind.PREEMPTED, "beams")


@pytest.mark.parametrize("preemption", [Preemption.SWAP, Preemption.RECOMPUTE])
def test_a_search_may_be_preempted_between_any_two_of_its_steps(preemption):
    """While its candidates are under way, which come once more, and before the executor hears of its new beams."""
    moments = set()
    for length in range(3, 11):
        h = Harness(num_blocks=19, block_size=2, num_host_blocks=60, preemption=preemption)
        h.submit("old", h.prompt(length), max_tokens=28)
        h.submit("beams", h.prompt(7), max_tokens=9, n=3, beam=BeamParams(3))
        request = h.request("beams")
        before = ""
        while not h.details(EventKind.PREEMPTED, "beams"):
            assert "beams" not in h.usage
            if len(h.oracle.pending) == 2:
                h.result()
            before = "expanded" if request.choices else "other"
            h.schedule()
        if h.under_way("beams"):
            before = "candidates under way"
        moments.add(before)
        h.run_and_check()
        check_scores(h)
    assert {"expanded", "candidates under way"} <= moments


# best_of


def test_the_best_samples_are_returned_best_first_with_their_scores():
    h = Harness(block_size=4)
    h.submit("a", h.prompt(9), max_tokens=12, n=2, best_of=5, stop_token_ids=frozenset(range(0, 50, 9)))
    h.run_and_check()
    wanted = h.expected_best_of("a")
    assert [h.scores["a", index] for index in range(2)] == pytest.approx([each.score for each in wanted])
    assert h.scores["a", 0] >= h.scores["a", 1]


def test_samples_that_are_ranked_come_at_the_end_and_all_count_as_output():
    h = Harness()
    h.submit("a", h.prompt(9), max_tokens=6, n=1, best_of=4)
    while "a" not in h.usage:
        assert not h.output
        h.step()
    assert list(h.output) == [("a", 0)]
    assert h.usage["a"].completion_tokens == 24


def test_as_many_best_ones_as_samples_are_streamed_unranked():
    h = Harness()
    h.submit("a", h.prompt(9), max_tokens=6, n=3, best_of=3)
    h.step()
    h.step()
    assert all(h.output["a", index] for index in range(3))
    h.run_and_check()
    assert not h.scores


@pytest.mark.parametrize("way", ["swap", "recompute", "loss"])
def test_scores_survive_preemption(way):
    preemption = Preemption.SWAP if way == "swap" else Preemption.RECOMPUTE
    h = Harness(num_blocks=18, block_size=2, num_host_blocks=60, preemption=preemption)
    h.submit("old", h.prompt(4), max_tokens=30)
    h.submit("a", h.prompt(7), max_tokens=7, n=2, best_of=3)
    if way == "loss":
        for _ in range(2):
            for _ in range(3):
                h.step()
            h.lose_and_return()
    h.run_and_check()
    assert h.details(EventKind.PREEMPTED, "a")
    wanted = h.expected_best_of("a")
    assert [h.scores["a", index] for index in range(2)] == pytest.approx([each.score for each in wanted])


def test_a_ranked_request_cannot_be_ended_in_part():
    h = Harness()
    h.submit("a", h.prompt(9), max_tokens=6, n=1, best_of=4)
    h.step()
    h.step()
    h.abort("a", sample_index=0)
    h.run_and_check()

"""Requests that ran on a KV manager that is gone go on with the tokens that their gateways have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvmanager.cost_model import Preemption
from kvmanager.errors import DeadlineExceeded, InvalidRequest
from kvmanager.request import FinishReason, RequestState
from kvmanager.spec import BeamParams, PinOrder, ResumedSequence
from tests.kvmanager.harness import Harness
from tests.kvmanager.states import STATES


def run_for(h: Harness, num_steps: int) -> None:
    for _ in range(num_steps):
        h.step()


@pytest.mark.parametrize("num_steps", [1, 2, 5, 9])
def test_every_sequence_goes_on_where_it_was(num_steps):
    h = Harness(block_size=4)
    h.submit("one", h.prompt(10), max_tokens=12)
    h.submit("three", h.prompt(21), max_tokens=11, n=3)
    h.submit("stops", h.prompt(6), max_tokens=30, n=2, stop_token_ids=frozenset(range(0, 50, 7)), min_tokens=4)
    run_for(h, num_steps)
    h.lose_manager()
    h.run_and_check()
    assert h.usage["one"].completion_tokens == 12
    assert h.usage["three"].completion_tokens == 33
    assert h.usage["three"].prompt_tokens == 21


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_whatever_state_a_request_was_in(state):
    h = state()
    if "executor-0" not in h.oracles:
        h.attach()
    h.lose_manager()
    h.run_and_check()


def test_again_and_again():
    h = Harness(num_blocks=24, block_size=4)
    for index in range(6):
        h.submit(index, h.prompt(8 + index), max_tokens=20, n=1 + index % 3)
    for num_steps in (3, 1, 4, 2, 6):
        run_for(h, num_steps)
        h.lose_manager()
    h.run_and_check()


def test_siblings_share_their_prompt_again():
    h = Harness(num_blocks=20, block_size=4)
    h.submit("a", h.prompt(32), max_tokens=12, n=4)  # not to be had if each had a prompt of its own
    run_for(h, 4)
    h.lose_manager()
    h.step()
    tables = [h.table("a", index)[:8] for index in range(4)]
    assert all(table == tables[0] for table in tables)
    assert h.prefilled_tokens("a") < 3 * 32
    h.run_and_check()


def test_a_sequence_that_has_ended_gets_no_row_and_no_word():
    h = Harness(block_size=4)
    h.submit("a", h.prompt(10), max_tokens=12, n=2)
    run_for(h, 3)
    h.abort("a", 1)  # as when a stop string was found
    h.reasons["a", 1] = FinishReason.STOP
    ended = list(h.output["a", 1])
    h.lose_manager()
    assert len(h.request("a").unfinished()) == 1
    h.run()
    assert h.output["a", 0] == h.expected("a", 0)
    assert h.output["a", 1] == ended
    assert h.usage["a"].completion_tokens == 12 + len(ended)


def test_a_sequence_whose_last_token_has_arrived_ends_at_once():
    h = Harness(block_size=4)
    h.submit("length", h.prompt(10), max_tokens=5)
    h.submit("stop", h.prompt(10), max_tokens=20, stop_token_ids=frozenset(range(25)), min_tokens=3)
    h.run()
    h.usage.clear()
    h.reasons.clear()
    h.lose_manager()
    assert h.reasons == {("length", 0): FinishReason.LENGTH, ("stop", 0): FinishReason.STOP}
    assert h.usage["length"].completion_tokens == 5
    assert h.manager.idle
    h.check_answers()


def test_a_stop_token_before_the_least_length_does_not_end_it():
    h = Harness(block_size=4)
    h.submit("a", h.prompt(10), max_tokens=9, stop_token_ids=frozenset(range(50)), min_tokens=4)
    run_for(h, 3)
    h.lose_manager()
    assert "a" not in h.usage
    h.run_and_check()
    assert h.usage["a"].completion_tokens == 5


def test_nothing_but_the_last_word_was_lost():
    h = Harness(block_size=4)
    h.submit("a", h.prompt(10), max_tokens=5, n=2)
    h.run()
    h.usage.clear()
    h.lose_manager()
    assert h.usage["a"].completion_tokens == 10
    assert h.manager.idle


def test_a_smaller_pool_ends_what_is_too_long_for_it_already():
    h = Harness(num_blocks=16, block_size=4)
    h.submit("a", h.prompt(8), max_tokens=0)
    run_for(h, 20)
    num_tokens = len(h.output["a", 0])
    h.capacity = replace(h.capacity, num_blocks=5)
    h.lose_manager(warm=False)
    assert h.reasons["a", 0] is FinishReason.LENGTH
    assert h.usage["a"].completion_tokens == num_tokens


def test_what_searches_or_ranks_starts_again():
    h = Harness(block_size=4)
    h.submit("beams", h.prompt(10), max_tokens=6, n=2, beam=BeamParams(3))
    h.submit("best", h.prompt(10), max_tokens=6, n=1, best_of=3)
    run_for(h, 3)
    h.lose_manager()
    h.run_and_check()


def test_no_limit_of_the_queue_refuses_what_was_accepted_before():
    h = Harness(num_blocks=8, block_size=4, max_waiting_requests=2)
    h.submit("runs", h.prompt(20), max_tokens=8)
    h.step()
    h.submit("waits", h.prompt(20), max_tokens=4)
    h.submit("waits too", h.prompt(20), max_tokens=4)
    h.step()
    h.lose_manager()
    h.run_and_check()


def test_preempted_again_it_still_has_its_tokens():
    h = Harness(num_blocks=12, block_size=2, num_host_blocks=20, preemption=Preemption.SWAP)
    h.submit("a", h.prompt(6), max_tokens=16)
    h.submit("b", h.prompt(5), max_tokens=8, n=2)
    run_for(h, 2)
    h.lose_manager()
    while h.schedule() is None or h.request("b").state is not RequestState.SWAPPED:
        if len(h.oracle.pending) == 2:
            h.result()
    h.run_and_check()


def test_its_deadline_holds_in_the_queue_and_while_it_runs():
    h = Harness(num_blocks=8, block_size=4)
    h.submit("runs", h.prompt(8), max_tokens=20, deadline=7.0)
    h.submit("waits", h.prompt(8), max_tokens=20, deadline=5.0)
    h.submit("is late", h.prompt(4), max_tokens=20, deadline=1.0)
    run_for(h, 4)
    h.lose_manager()
    h.detach()
    h.expire(1.5)
    assert isinstance(h.errors["is late"], DeadlineExceeded)
    h.attach()
    run_for(h, 2)
    h.expire(6.0)
    assert isinstance(h.errors["waits"], DeadlineExceeded)
    h.expire(7.0)
    assert isinstance(h.errors["runs"], DeadlineExceeded)
    h.run()
    h.check_nothing_is_left()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": 2}, "has 1 sequences; n is 2"),
        ({"resumed": (ResumedSequence([]),)}, "0 tokens; it must be from 1 to 8"),
        ({"resumed": (ResumedSequence([1] * 9),)}, "9 tokens; it must be from 1 to 8"),
        ({"resumed": (ResumedSequence([1] * 191),), "max_tokens": 0}, "from 1 to 190"),
        ({"best_of": 2}, "start again"),
        ({"beam": BeamParams(2)}, "start again"),
        ({"pin": PinOrder("kept", 60.0)}, "start again"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, message):
    h = Harness(block_size=4)
    h.submit("a", h.prompt(10))
    spec = replace(h.specs["a"], handle="b", resumed=(ResumedSequence([1]),))
    with pytest.raises(InvalidRequest, match=message) as refusal:
        h.manager.submit(replace(spec, **changes), 0.0)
    assert refusal.value.field == "resumption"
    h.run_and_check()

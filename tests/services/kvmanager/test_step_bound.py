"""How long an executor is waited for."""

from __future__ import annotations

import random

import pytest

from services.kvmanager.step_bound import FACTOR, FIRST_FACTOR, StepBound

SEED = random.SystemRandom().getrandbits(32)


def after(*durations: float, patience: float = 5.0, prefill_tokens_per_s: float = 0.0) -> StepBound:
    """A bound that has seen steps of these durations, one after the other, up to time 0."""
    bound = StepBound(patience)
    bound.prefill_tokens_per_s = prefill_tokens_per_s
    for duration in durations:
        bound.sent(1, -duration)
        bound.done(duration, 0.0)
    return bound


def test_nothing_is_late_while_nothing_is_under_way() -> None:
    bound = after(0.01)
    assert not bound.is_over(10**6)
    assert bound.waited(10**6) == 0


def test_quick_steps_get_the_least_patience_and_the_first_one_more() -> None:
    first, later = after(), after(0.01)
    for bound in (first, later):
        bound.sent(1, 100.0)
    assert not later.is_over(104.9)
    assert later.is_over(105.1)
    assert not first.is_over(100 + 5 * FIRST_FACTOR - 0.1)
    assert first.is_over(100 + 5 * FIRST_FACTOR + 0.1)


def test_slow_steps_and_long_prompts_get_more() -> None:
    assert after(2.0, 2.0).seconds == FACTOR * 2.0
    prompt = after(0.5, prefill_tokens_per_s=100.0)
    prompt.sent(512, 0.0)
    assert prompt.seconds == pytest.approx(FACTOR * (0.5 + 5.12))


def test_one_step_that_took_very_long_does_not_count_for_all_others() -> None:
    bound = after(*[0.01] * 15, 4.0, *[0.01] * 5)
    assert bound.seconds == 5.0
    assert after(*[0.01] * 15, *[4.0] * 5).seconds == 40.0


def test_steps_that_were_given_up_too_early_get_the_time_they_need() -> None:
    bound = after(*[0.01] * 15)
    for number in range(4):
        assert bound.seconds == 5.0 * 2**number
        bound.sent(1, 0.0)
        bound.lost()
        bound.connected()
    bound.sent(1, 0.0)
    bound.done(79.0, 79.0)
    assert bound.seconds == 5.0


def test_time_begins_anew_with_each_result_and_ends_with_the_last() -> None:
    bound = after(0.01)
    bound.sent(1, 0.0)
    bound.sent(1, 0.1)
    bound.done(4.0, 4.0)
    assert bound.waited(8.0) == 4.0
    bound.done(0.01, 8.0)
    assert bound.waited(100.0) == 0.0
    bound.sent(1, 100.0)
    assert bound.waited(101.0) == 1.0


def test_a_connection_that_breaks_leaves_nothing_under_way_but_what_was_learnt() -> None:
    bound = after(3.0)
    bound.sent(1, 0.0)
    bound.connected()
    assert not bound.is_over(10**6)
    assert bound.seconds == 30.0


def test_a_pause_of_this_process_is_not_the_executor_s_fault() -> None:
    """However it falls between the steps: what is forgiven is never more than what was waited."""
    rng = random.Random(SEED)
    for _ in range(200):
        bound = after(0.01)
        bound.sent(1, 0.0)
        now, awake = 0.0, 0.0
        for _ in range(rng.randrange(1, 30)):
            nap, lag = 0.1, rng.choice([0.0, 0.01, 1.0, 3600.0])
            now += nap + lag
            awake += nap
            bound.forgive(lag, now)
            assert bound.waited(now) == pytest.approx(awake), f"seed {SEED}"
    bound = after(0.01)
    bound.sent(1, 99.0)
    bound.forgive(50.0, 100.0)
    assert bound.waited(100.0) == 0.0
    assert bound.is_over(105.5)

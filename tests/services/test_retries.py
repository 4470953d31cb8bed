"""When a call is tried again, by a clock that the test sets."""

from __future__ import annotations

import random

import grpc
import pytest

from octavo.client import OctavoError, RetryPolicy
from octavo.client.continuation import Continuation
from octavo.client.gateways import Gateways
from octavo.client.retries import Retries
from octavo.v1 import inference_pb2

AWAY = OctavoError(grpc.StatusCode.UNAVAILABLE, "away", from_server=False)


def full(retry_after: float) -> OctavoError:
    return OctavoError(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", retry_after=retry_after)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def delays(retries: Retries, clock: Clock, count: int) -> list[float]:
    """Of so many failures in a row, each wait waited."""
    waits = []
    for _ in range(count):
        waits.append(retries.delay_after(AWAY))
        clock.now += waits[-1]
    return waits


def test_waits_grow_and_are_bounded() -> None:
    clock = Clock()
    policy = RetryPolicy(start_patience=100, initial_delay=1, multiplier=3, maximum_delay=10)
    longest = delays(Retries(policy, None, 1, clock, lambda: 1.0), clock, 5)
    shortest = delays(Retries(policy, None, 1, clock, lambda: 0.0), clock, 5)
    assert longest == [1, 3, 9, 10, 10]
    assert shortest == [0.5, 1.5, 4.5, 5, 5]


def test_each_server_is_tried_before_a_wait() -> None:
    clock = Clock()
    policy = RetryPolicy(start_patience=100, initial_delay=1, multiplier=2, maximum_delay=10)
    assert delays(Retries(policy, None, 3, clock, lambda: 1.0), clock, 6) == [0, 0, 1, 0, 0, 2]


def test_an_outage_begins_with_its_first_failure_and_ends_with_a_response() -> None:
    clock = Clock()
    retries = Retries(RetryPolicy(start_patience=1, patience=20, initial_delay=1), None, 1, clock, lambda: 1.0)
    clock.now += 500
    retries.delay_after(AWAY)
    retries.responded()
    clock.now += 500
    retries.delay_after(AWAY)
    clock.now += 17
    retries.delay_after(AWAY)
    clock.now += 3
    with pytest.raises(OctavoError) as caught:
        retries.delay_after(AWAY)
    assert caught.value is AWAY


def test_a_server_says_when_to_return() -> None:
    retries = Retries(RetryPolicy(), None, 2, Clock(), random.random)
    assert 3 <= retries.delay_after(full(3.0)) <= 3.2
    with pytest.raises(OctavoError, match="full"):
        retries.delay_after(full(30.0))


def test_no_wait_goes_beyond_the_timeout() -> None:
    clock = Clock()
    retries = Retries(RetryPolicy(initial_delay=1), 1.25, 1, clock, lambda: 1.0)
    assert delays(retries, clock, 2) == [1, 0.25]
    with pytest.raises(OctavoError) as caught:
        retries.check_timeout()
    assert caught.value.status is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "not done within 1.25 s" in caught.value.message


def test_calls_that_fail_together_leave_a_server_once() -> None:
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        servers = Gateways(["a", "b", "c"], lambda address: channel)
        first = servers.current
        servers.leave(first)
        second = servers.current
        servers.leave(first)
        assert servers.current is second
        servers.leave(second)
        servers.leave(servers.current)
        assert servers.current is first
    with pytest.raises(ValueError, match="at least one"):
        Gateways([], lambda address: channel)


def test_a_second_answer_that_differs_is_not_put_to_the_first() -> None:
    continuation = Continuation(1)
    continuation.new_part(inference_pb2.GenerateResponse(position=0, token_ids=[1, 2, 3]))
    continuation.restart()
    assert continuation.new_part(inference_pb2.GenerateResponse(position=0, token_ids=[1, 2])) is None
    with pytest.raises(OctavoError, match="other tokens") as caught:
        continuation.new_part(inference_pb2.GenerateResponse(position=2, token_ids=[4, 5]))
    assert caught.value.status is grpc.StatusCode.DATA_LOSS


def test_tokens_that_a_server_left_out() -> None:
    continuation = Continuation(1)
    response = inference_pb2.GenerateResponse(position=0, token_ids=[1, 2])
    assert continuation.new_part(response) is response
    with pytest.raises(OctavoError, match="token 2 was awaited, and the server went on with 3") as caught:
        continuation.new_part(inference_pb2.GenerateResponse(position=3, token_ids=[4]))
    assert caught.value.status is grpc.StatusCode.DATA_LOSS


def test_progress_never_goes_back() -> None:
    continuation = Continuation(1)

    def is_new(computed: int) -> bool:
        progress = inference_pb2.PrefillProgress(computed_tokens=computed, prompt_tokens=9)
        return continuation.new_part(inference_pb2.GenerateResponse(progress=progress)) is not None

    assert [is_new(computed) for computed in (2, 4, 2, 4, 6)] == [True, True, False, False, True]
    continuation.new_part(inference_pb2.GenerateResponse(token_ids=[1]))
    assert not is_new(8)

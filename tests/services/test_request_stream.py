"""What is delivered for one request, and when."""

from __future__ import annotations

import asyncio

import pytest

from gateway.output import FinishReason, TokenLogprobs
from octavo.v1 import kvmanager_pb2
from services.gateway.pacer import Pace, Pacer
from services.gateway.request_stream import RequestStream, Update


def make(interval: float | None = None, aborts: list[kvmanager_pb2.Abort] | None = None) -> RequestStream:
    pacer = Pacer(responses_per_second=500)
    return RequestStream(7, ([] if aborts is None else aborts).append, lambda handle: None, pacer, Pace(interval))


def plain(position: int, *token_ids: int, index: int = 0) -> Update:
    return Update(index, position, list(token_ids))


async def test_what_comes_before_it_is_taken_is_taken_together() -> None:
    stream = make()
    for position in range(3):
        stream.add(plain(position, 10 + position))
        stream.add(plain(position, 20 + position, index=1))
    stream.add(Update(1, 3, [23], finish_reason=FinishReason.STOP, score=-0.5))
    delivery = await stream.next()
    expected = Update(1, 0, [20, 21, 22, 23], finish_reason=FinishReason.STOP, score=-0.5)
    assert delivery.updates == [plain(0, 10, 11, 12), expected]
    stream.add(plain(3, 13))
    assert (await stream.next()).updates == [plain(3, 13)]


async def test_log_probabilities_are_joined_with_their_tokens() -> None:
    stream = make()
    logprobs = [TokenLogprobs(-0.5), TokenLogprobs(-1.5)]
    for position, each in enumerate(logprobs):
        stream.add(Update(0, position, [position], [each]))
    assert (await stream.next()).updates == [Update(0, 0, [0, 1], logprobs)]


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(plain(2, 12), id="a gap"),
        pytest.param(plain(0, 10), id="a repeat"),
        pytest.param(Update(0, 1, [11], [TokenLogprobs(-0.5)]), id="log probabilities from here on"),
    ],
)
async def test_what_does_not_follow_is_not_joined(later: Update) -> None:
    """So that whoever reads the positions sees it."""
    stream = make()
    stream.add(plain(0, 10))
    stream.add(later)
    assert (await stream.next()).updates == [plain(0, 10), later]


async def test_nothing_is_joined_to_a_sequence_that_has_ended() -> None:
    stream = make()
    last = Update(0, 0, [10], finish_reason=FinishReason.STOP)
    stream.add(last)
    stream.add(plain(1, 11))
    assert (await stream.next()).updates == [last, plain(1, 11)]


async def test_a_stream_that_had_its_turn_rests_but_its_end_does_not_wait() -> None:
    stream = make(interval=60.0)
    stream.add(plain(0, 10))
    assert (await stream.next()).updates == [plain(0, 10)]
    stream.add(plain(1, 11))
    taking = asyncio.ensure_future(stream.next())
    stream.add(plain(2, 12))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not taking.done()
    stream.end(kvmanager_pb2.RequestEnd(handle=7))
    delivery = await taking
    assert delivery.updates == [plain(1, 11, 12)]
    assert delivery.end is not None


async def test_a_stream_that_rests_goes_on_by_itself() -> None:
    stream = make(interval=0.05)
    for position in range(3):
        stream.add(plain(position, position))
        assert (await asyncio.wait_for(stream.next(), 30)).updates == [plain(position, position)]


async def test_a_request_that_is_given_up_is_aborted_unless_it_has_ended() -> None:
    aborts: list[kvmanager_pb2.Abort] = []
    make(aborts=aborts).close()
    assert aborts == [kvmanager_pb2.Abort(handle=7)]
    ended = make(aborts=aborts)
    ended.end(kvmanager_pb2.RequestEnd(handle=7))
    await ended.next()
    ended.close()
    assert len(aborts) == 1

"""What is delivered for one request, and when."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import PositionGap
from gateway.output import FinishReason, TokenLogprobs
from octavo.v1 import kvmanager_pb2
from services.gateway.pacer import Pacer
from services.gateway.received import Update
from services.gateway.request_stream import RequestStream
from tests.services.gateway.prepared_requests import prepared


class NotedAborts:
    """Computes nothing, and remembers what it was told to end."""

    def __init__(self) -> None:
        self.aborts: list[kvmanager_pb2.Abort] = []

    def abort(self, abort: kvmanager_pb2.Abort) -> None:
        self.aborts.append(abort)

    def forget(self, stream: RequestStream) -> None:
        pass


def make(interval: float | None = None, carrier: NotedAborts | None = None) -> RequestStream:
    stream = RequestStream(7, prepared(n=2, response_interval=interval), None, Pacer(responses_per_second=500))
    stream.carrier = carrier
    return stream


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


async def test_log_probabilities_from_here_on_are_not_joined_to_tokens_without() -> None:
    stream = make()
    stream.add(plain(0, 10))
    stream.add(Update(0, 1, [11], [TokenLogprobs(-0.5)]))
    assert (await stream.next()).updates == [plain(0, 10), Update(0, 1, [11], [TokenLogprobs(-0.5)])]


async def test_what_comes_again_is_dropped() -> None:
    """Of what comes with it the new part is kept."""
    stream = make()
    stream.add(Update(0, 0, [10, 11], [TokenLogprobs(-1.0), TokenLogprobs(-2.0)]))
    await stream.next()
    stream.add(Update(0, 0, [10], [TokenLogprobs(-1.0)]))
    stream.add(Update(0, 1, [11, 12], [TokenLogprobs(-2.0), TokenLogprobs(-3.0)], FinishReason.STOP))
    assert (await stream.next()).updates == [Update(0, 2, [12], [TokenLogprobs(-3.0)], FinishReason.STOP)]


async def test_tokens_that_are_missing_end_the_request() -> None:
    stream = make()
    stream.add(plain(0, 10))
    stream.add(plain(2, 12))
    with pytest.raises(PositionGap, match="tokens from 1 to 1 of a sequence"):
        await stream.next()


async def test_nothing_comes_after_the_end_of_a_sequence() -> None:
    stream = make()
    last = Update(0, 0, [10], finish_reason=FinishReason.STOP)
    stream.add(last)
    stream.add(plain(1, 11))
    assert (await stream.next()).updates == [last]


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
    noted = NotedAborts()
    make(carrier=noted).close()
    assert noted.aborts == [kvmanager_pb2.Abort(handle=7)]
    ended = make(carrier=noted)
    ended.end(kvmanager_pb2.RequestEnd(handle=7))
    await ended.next()
    ended.close()
    assert len(noted.aborts) == 1

"""What becomes of requests when KV managers are lost, refuse, hang, and come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from gateway.errors import PositionGap
from gateway.prepared import PreparedRequest
from octavo.v1 import common_pb2, kvmanager_pb2
from services.gateway import attachment, kvmanager_link, waiting
from services.gateway.backends import Backends
from services.gateway.request_stream import RequestStream
from services.rpc.channel import inner_channel
from services.rpc.columns import unpack_int32
from services.rpc.status import RpcError
from services.state.embedded.prefix_directory import EmbeddedPrefixDirectory
from tests.ports import free_port
from tests.services.gateway.prepared_requests import Reader, prepared
from tests.services.scripted_kvmanager import (
    MODEL,
    ScriptedKVManager,
    columns,
    end,
    eventually,
    refusal,
    serving,
    tokens,
)

STOP = common_pb2.FINISH_REASON_STOP
NO_PREFIXES = EmbeddedPrefixDirectory(lambda: 0.0)
AWAY = (grpc.StatusCode.UNAVAILABLE, "STANDBY")

Submissions = list[kvmanager_pb2.Submission]


def connect(address: str) -> grpc.aio.Channel:
    return inner_channel(address, "kvmanager")


class Bench:
    """A gateway's way to KV managers that do what they are told."""

    def __init__(self, backends: Backends, kvmanagers: Sequence[ScriptedKVManager]) -> None:
        self.backends = backends
        self.kvmanagers = kvmanagers
        self.streams: list[RequestStream] = []

    @property
    def kvmanager(self) -> ScriptedKVManager:
        return self.kvmanagers[0]

    async def submit(self, request: PreparedRequest | None = None) -> RequestStream:
        stream = self.backends.stream(request or prepared(), None)
        await self.backends.submit(stream)
        self.streams.append(stream)
        return stream

    async def submissions(self, count: int, kvmanager: ScriptedKVManager | None = None) -> Submissions:
        """Of the first KV manager, when so many have arrived."""
        source = kvmanager or self.kvmanager
        await eventually(lambda: len(source.submissions) >= count)
        assert len(source.submissions) == count
        return source.submissions

    async def go_away(self) -> None:
        """The first KV manager ends the streams, and takes nobody in."""
        self.kvmanager.refusal = AWAY
        self.kvmanager.lose_gateways()
        await eventually(lambda: not self.kvmanager.attached)

    def come_back(self) -> None:
        self.kvmanager.refusal = None


@asynccontextmanager
async def bench(
    addresses: str = "0", patience: float = 60.0, kvmanagers: int = 1, ready: Sequence[int] = (0,)
) -> AsyncIterator[Bench]:
    """KV managers by number.

    Args:
        addresses: numbers instead of addresses.
        ready: those that take gateways in.
    """
    scripted = [ScriptedKVManager(lambda submission: []) for _ in range(kvmanagers)]
    for number, kvmanager in enumerate(scripted):
        kvmanager.refusal = None if number in ready else AWAY
    async with _all_serving(scripted) as served:
        groups = [[served[int(number)] for number in group.split(",")] for group in addresses.split(";")]
        backends = Backends(groups, connect, NO_PREFIXES, patience, 1000.0, lambda: None)
        running = asyncio.ensure_future(backends.run())
        here = Bench(backends, scripted)
        await eventually(lambda: all(scripted[number].attached for number in ready))
        if ready:
            await eventually(lambda: backends.ready)
        try:
            yield here
        finally:
            for stream in here.streams:
                stream.close()
            running.cancel()
            (ended,) = await asyncio.gather(running, return_exceptions=True)
            assert isinstance(ended, asyncio.CancelledError), ended


@asynccontextmanager
async def _all_serving(kvmanagers: Sequence[ScriptedKVManager]) -> AsyncIterator[list[str]]:
    if not kvmanagers:
        yield []
        return
    async with serving(kvmanagers[0]) as address, _all_serving(kvmanagers[1:]) as others:
        yield [address, *others]


def resumed(submission: kvmanager_pb2.Submission) -> list[list[int]]:
    """What a submission says that its sequences have."""
    return [unpack_int32(sequence.token_ids) for sequence in submission.resumption.sequences]


def without_resumption(submission: kvmanager_pb2.Submission) -> kvmanager_pb2.Submission:
    copy = kvmanager_pb2.Submission()
    copy.CopyFrom(submission)
    copy.ClearField("resumption")
    return copy


def assert_starts_again(again: kvmanager_pb2.Submission, first: kvmanager_pb2.Submission) -> None:
    """It is the same request, from its beginning on, and says that it was there before."""
    assert again.HasField("resumption")
    assert not again.resumption.sequences
    assert without_resumption(again) == first


async def failure(stream: RequestStream) -> RpcError:
    """How a request ends that fails."""
    with pytest.raises(RpcError) as caught:
        await asyncio.wait_for(Reader(stream).read_all(), 30)
    return caught.value


# --- Lost and found -------------------------------------------------------------------------------------------------


async def test_a_request_goes_on_from_the_tokens_that_it_has() -> None:
    """What was sent twice arrives once, whoever sent it."""
    async with bench() as here:
        reader = Reader(await here.submit())
        (first,) = await here.submissions(1)
        assert not first.HasField("resumption")
        here.kvmanager.tell(columns(first, [(0, 0, 10)]), columns(first, [(0, 1, 11)]))
        assert await reader.read(2) == [10, 11]
        here.kvmanager.tell(columns(first, [(0, 2, 12)]))  # on its way when the stream ends
        await here.go_away()
        here.come_back()
        _, again = await here.submissions(2)
        assert resumed(again) == [[10, 11, 12]]
        assert without_resumption(again) == first
        here.kvmanager.tell(tokens(again, [11, 12, 13], position=1), tokens(again, [14], position=4, reason=STOP))
        here.kvmanager.tell(end(again))
        assert await reader.read_all() == {0: [10, 11, 12, 13, 14]}


async def test_all_come_again_as_they_arrived() -> None:
    async with bench() as here:
        readers = [Reader(await here.submit(prepared([number]))) for number in range(5)]
        submissions = await here.submissions(5)
        here.kvmanager.tell(columns(submissions[3], [(0, 0, 30)]))
        await readers[3].read(1)
        await here.go_away()
        meanwhile = await here.submit(prepared([5]))
        here.streams[1].close()
        here.come_back()
        again = (await here.submissions(10))[5:]
        assert [unpack_int32(each.prompt_token_ids) for each in again] == [[0], [2], [3], [4], [5]]
        assert [resumed(each) for each in again] == [[], [], [[30]], [], []]
        here.kvmanager.tell(tokens(again[-1], [7], reason=STOP), end(again[-1]))
        assert await Reader(meanwhile).read_all() == {0: [7]}


async def test_a_sequence_that_has_ended_stays_so() -> None:
    """Whether the KV manager ended it or a stop string did."""
    async with bench() as here:
        reader = Reader(await here.submit(prepared(n=3)))
        (first,) = await here.submissions(1)
        here.kvmanager.tell(
            columns(first, [(0, 0, 10), (1, 0, 20), (2, 0, 30)]), tokens(first, [11], position=1, reason=STOP)
        )
        await reader.read(2, 0)
        await reader.read(1, 2)
        here.streams[0].end_sequence(2)
        await eventually(lambda: here.kvmanager.aborts)
        await here.go_away()
        here.come_back()
        _, again = await here.submissions(2)
        assert resumed(again) == [[10, 11], [20], [30]]
        unspecified = common_pb2.FINISH_REASON_UNSPECIFIED
        assert [each.finish_reason for each in again.resumption.sequences] == [STOP, unspecified, STOP]
        here.kvmanager.tell(
            tokens(again, [31], index=2, position=1), tokens(again, [21], index=1, position=1, reason=STOP)
        )
        here.kvmanager.tell(end(again))
        assert await reader.read_all() == {0: [10, 11], 1: [20, 21], 2: [30]}


async def test_where_all_have_ended_nothing_is_submitted() -> None:
    async with bench() as here:
        reader = Reader(await here.submit())
        (first,) = await here.submissions(1)
        here.kvmanager.tell(tokens(first, [10], reason=STOP))
        await reader.read(1)
        await here.go_away()
        here.come_back()
        assert await reader.read_all() == {0: [10]}
        await here.submissions(1)


@pytest.mark.parametrize("ranking", [{"best_of": 4}, {"n": 2}])
async def test_what_has_to_start_again(ranking: dict[str, Any]) -> None:
    """A request that its backend ranks, and one of which a sequence has no token."""
    async with bench() as here:
        reader = Reader(await here.submit(prepared(**ranking)))
        (first,) = await here.submissions(1)
        here.kvmanager.tell(columns(first, [(0, 0, 10)]))
        await reader.read(1)
        await here.go_away()
        here.come_back()
        _, again = await here.submissions(2)
        assert_starts_again(again, first)
        here.kvmanager.tell(tokens(again, [10, 11], reason=STOP), end(again))
        assert await reader.read_all() == {0: [10, 11]}


async def test_it_waits_until_the_kv_manager_knows_its_model() -> None:
    """One that has just started would refuse, for want of an executor."""
    async with bench() as here:
        await here.submit()
        await here.submissions(1)
        here.kvmanager.backend = kvmanager_pb2.BackendState()
        here.kvmanager.lose_gateways()
        await eventually(lambda: not here.kvmanager.attached)
        await eventually(lambda: here.kvmanager.attached)
        await here.submit()
        assert here.backends.model == MODEL
        assert here.backends.ready
        await here.submissions(1)
        backend = kvmanager_pb2.BackendState(ready=True, model=MODEL, epoch=2)
        here.kvmanager.tell(kvmanager_pb2.AttachResponse(backend=backend))
        await here.submissions(3)


async def test_a_pin_is_ordered_again() -> None:
    async with bench() as here:
        from gateway.prepared import PinOrder

        stream = await here.submit(prepared(pin=PinOrder("pin", 1_000_000)))
        (first,) = await here.submissions(1)
        await here.go_away()
        here.come_back()
        _, again = await here.submissions(2)
        assert_starts_again(again, first)
        here.kvmanager.tell(end(again, prompt_tokens=3))
        assert (await stream.next()).end is not None


async def test_a_gap_is_an_error() -> None:
    async with bench() as here:
        stream = await here.submit()
        (first,) = await here.submissions(1)
        here.kvmanager.tell(columns(first, [(0, 0, 10)]), columns(first, [(0, 2, 12)]))
        with pytest.raises(PositionGap, match="tokens from 1 to 1"):
            await Reader(stream).read_all()
        stream.close()
        await eventually(lambda: here.kvmanager.aborts)


async def test_a_request_that_brings_every_kv_manager_down_does_not_do_so_for_ever() -> None:
    async with bench() as here:
        here.kvmanager.script = lambda submission: here.kvmanager.lose_gateways() or []  # type: ignore[func-returns-value]
        error = await failure(await here.submit())
        assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "BACKEND_UNAVAILABLE")
        assert "10 times" in error.message


# --- How long it waits ----------------------------------------------------------------------------------------------


async def test_patience_has_an_end() -> None:
    async with bench(patience=0.3) as here:
        waiting_one = await here.submit()
        await here.submissions(1)
        await here.go_away()
        newcomer = await here.submit()
        for stream in (waiting_one, newcomer):
            error = await failure(stream)
            assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "BACKEND_UNAVAILABLE")
            assert error.retry_after
            stream.close()
        await eventually(lambda: not here.backends.ready)
        with pytest.raises(RpcError, match="can't be reached"):
            await here.submit()
        with pytest.raises(RpcError, match="can't be reached"):
            _ = here.backends.model
        here.come_back()
        await eventually(lambda: here.backends.ready)
        await here.submit()
        await here.submissions(2)


async def test_before_the_first_kv_manager_there_is_nothing_to_wait_for() -> None:
    async with bench(ready=()) as here:
        with pytest.raises(RpcError, match="can't be reached") as caught:
            await here.submit()
        assert caught.value.code is grpc.StatusCode.UNAVAILABLE


async def test_a_request_s_own_time_goes_on_while_it_waits() -> None:
    async with bench() as here:
        short = await here.submit(prepared(timeout_us=300_000))
        long = await here.submit(prepared(timeout_us=60_000_000))
        first = await here.submissions(2)
        await here.go_away()
        error = await failure(short)
        assert (error.code, error.field) == (grpc.StatusCode.DEADLINE_EXCEEDED, "timeout")
        short.close()
        here.come_back()
        again = (await here.submissions(3))[-1]
        assert again.handle == long.handle
        assert 0 < again.timeout_us <= first[1].timeout_us - 300_000


@pytest.mark.parametrize(("limit", "value"), [("MAX_NEW_REQUESTS", 2), ("MAX_NEW_TOKENS", 6)])
async def test_no_more_wait_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    """Those that were there before don't count."""
    monkeypatch.setattr(waiting, limit, value)
    async with bench() as here:
        for _ in range(3):
            await here.submit()
        await here.submissions(3)
        await here.go_away()
        leaving, _ = await here.submit(), await here.submit()
        with pytest.raises(RpcError) as caught:
            await here.submit()
        error = caught.value
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
        assert error.retry_after
        leaving.close()
        await here.submit()
        here.come_back()
        await here.submissions(8)


# --- Leaders and standbys -------------------------------------------------------------------------------------------


async def test_a_standby_takes_over() -> None:
    async with bench("0,1", kvmanagers=2) as here:
        reader = Reader(await here.submit())
        (first,) = await here.submissions(1)
        here.kvmanager.tell(columns(first, [(0, 0, 10)]))
        await reader.read(1)
        here.kvmanagers[1].refusal = None
        await here.go_away()
        (again,) = await here.submissions(1, here.kvmanagers[1])
        assert resumed(again) == [[10]]


@pytest.mark.parametrize("reason", ["DRAINING", "STANDBY"])
async def test_a_request_that_comes_too_late_for_one_leader_goes_to_the_next(reason: str) -> None:
    async with bench("0,1", kvmanagers=2) as here:
        here.kvmanager.script = lambda submission: [
            refusal(submission, grpc.StatusCode.UNAVAILABLE, "another leads", reason)
        ]
        reader = Reader(await here.submit())
        await here.submissions(1)
        here.kvmanagers[1].refusal = None
        await here.go_away()
        (again,) = await here.submissions(1, here.kvmanagers[1])
        here.kvmanagers[1].tell(tokens(again, [10], reason=STOP), end(again))
        assert await reader.read_all() == {0: [10]}


async def test_patience_begins_when_a_kvmanager_that_drains_is_gone() -> None:
    async with bench(patience=0.3) as here:
        here.kvmanager.script = lambda submission: [
            refusal(submission, grpc.StatusCode.UNAVAILABLE, "shutting down", "DRAINING")
        ]
        next_delivery = asyncio.ensure_future((await here.submit()).next())
        await here.submissions(1)
        done, _ = await asyncio.wait([next_delivery], timeout=0.9)
        assert not done
        await here.go_away()
        with pytest.raises(RpcError) as caught:
            await next_delivery
        assert caught.value.code is grpc.StatusCode.UNAVAILABLE


async def test_other_refusals_are_for_the_client() -> None:
    async with bench() as here:
        here.kvmanager.script = lambda submission: [
            refusal(submission, grpc.StatusCode.RESOURCE_EXHAUSTED, "full", "QUEUE_FULL")
        ]
        delivery = await (await here.submit()).next()
        assert delivery.end is not None
        assert delivery.end.error.reason == "QUEUE_FULL"


async def test_only_what_had_a_place_in_the_queue_says_so() -> None:
    async with bench() as here:
        await here.submit()
        (first,) = await here.submissions(1)
        await here.go_away()
        await here.submit()
        here.come_back()
        _, again, new = await here.submissions(3)
        assert_starts_again(again, first)
        assert not new.HasField("resumption")


async def test_a_kv_manager_that_hangs_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it does take connections: a standby is found beside it."""
    monkeypatch.setattr(attachment, "_TICK_SECONDS", 0.1)
    async with bench("0,1", kvmanagers=2) as here:
        await here.submit()
        await here.submissions(1)
        here.kvmanager.silent = True
        here.kvmanagers[1].refusal = None
        await here.submissions(1, here.kvmanagers[1])


async def test_an_address_that_takes_connections_and_says_nothing_holds_nobody_up() -> None:
    mute = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", free_port())
    async with mute, serving(ScriptedKVManager(lambda submission: [])) as address:
        silent = f"127.0.0.1:{mute.sockets[0].getsockname()[1]}"
        backends = Backends([[silent, address]], connect, NO_PREFIXES, 60.0, 1000.0, lambda: None)
        running = asyncio.ensure_future(backends.run())
        await eventually(lambda: backends.ready)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_group_that_is_lost_gives_its_requests_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvmanager_link, "_TAKE_OVER_SECONDS", 0.2)
    async with bench("0;1", kvmanagers=2, ready=(0, 1)) as here:
        await eventually(lambda: all(link.open for link in here.backends.links))
        first, second = Reader(await here.submit()), Reader(await here.submit())
        (there,) = await here.submissions(1)
        await here.submissions(1, here.kvmanagers[1])
        here.kvmanager.tell(columns(there, [(0, 0, 10)]))
        await asyncio.wait(
            [asyncio.ensure_future(each.read(1)) for each in (first, second)], return_when="FIRST_COMPLETED"
        )
        moved = first if first.token_ids else second
        await here.go_away()
        _, again = await here.submissions(2, here.kvmanagers[1])
        assert again.handle == there.handle
        assert resumed(again) == [[10]]
        here.kvmanagers[1].tell(tokens(again, [11], position=1, reason=STOP), end(again))
        assert await moved.read_all() == {0: [10, 11]}

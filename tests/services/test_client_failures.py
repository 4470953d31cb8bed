"""Both clients against servers that break: one answer without a gap or a repeat, or the error that can't be helped."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from octavo.client import AsyncClient, Client, OctavoError, RetryPolicy, generation
from octavo.v1 import common_pb2, inference_pb2
from tests.ports import free_port
from tests.services.scripted_gateways import (
    LENGTHS,
    Fault,
    ScriptedGateway,
    World,
    gateways,
    responses,
    text_until,
    token_id,
)

QUICK = RetryPolicy(initial_delay=0.001, maximum_delay=0.002)
BROKEN = Fault()
DRAINING = Fault(reason="DRAINING")
Request = inference_pb2.GenerateRequest | inference_pb2.ResumeRequest


@dataclass
class Received:
    """What a caller gets, checked as it comes."""

    token_ids: dict[int, list[int]] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, list[float]] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)
    usage: common_pb2.Usage | None = None
    error: OctavoError | None = None

    def add(self, response: inference_pb2.GenerateResponse) -> None:
        index = response.sequence_index
        tokens = self.token_ids.setdefault(index, [])
        assert response.position == len(tokens), "a gap or a repeat"
        assert index not in self.ended, "a response after the sequence's last"
        assert response.token_ids or response.text or response.finish_reason, "an empty response"
        tokens += response.token_ids
        self.texts[index] = self.texts.get(index, "") + response.text
        self.logprobs.setdefault(index, []).extend(each.logprob for each in response.logprobs)
        if response.finish_reason:
            self.ended.append(index)
        if response.HasField("usage"):
            assert self.usage is None, "usage twice"
            self.usage = response.usage

    def check_complete(self, n: int = 2) -> None:
        for index in range(n):
            positions = range(LENGTHS[index])
            assert self.token_ids[index] == [token_id(index, position) for position in positions]
            assert self.texts[index] == text_until(index, LENGTHS[index])
            assert self.logprobs[index] == [-float(position) for position in positions]
        assert sorted(self.ended) == list(range(n))
        assert self.usage is not None
        assert self.usage.completion_tokens == sum(LENGTHS[:n])
        assert self.error is None


class Caller:
    """Either client, for one call at a time."""

    def __init__(self, asynchronous: bool, addresses: list[str]) -> None:
        self.addresses = addresses
        self._asynchronous = asynchronous

    def generate(self, retry: RetryPolicy | None = QUICK, **arguments: Any) -> Received:
        """A whole answer, or as much as there was before the error."""
        received = Received()
        arguments = {"prompt": "x", "n": 2} | arguments

        async def ask() -> None:
            async with AsyncClient(self.addresses, retry=retry) as client:
                async for response in client.generate(**arguments):
                    received.add(response)

        try:
            if self._asynchronous:
                asyncio.run(ask())
            else:
                with Client(self.addresses, retry=retry) as client:
                    for response in client.generate(**arguments):
                        received.add(response)
        except OctavoError as error:
            received.error = error
        return received

    def call(self, method: str, *arguments: Any, retry: RetryPolicy | None = QUICK, **options: Any) -> Any:
        """Any other method."""

        async def ask() -> Any:
            async with AsyncClient(self.addresses, retry=retry) as client:
                return await getattr(client, method)(*arguments, **options)

        if self._asynchronous:
            return asyncio.run(ask())
        with Client(self.addresses, retry=retry) as client:
            return getattr(client, method)(*arguments, **options)


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, ScriptedGateway]]:
    with gateways(2) as servers:
        yield servers


@pytest.fixture
def set_world(servers: dict[str, ScriptedGateway]) -> Callable[..., World]:
    def make(*faults: Fault | None, **fields: Any) -> World:
        world = World(faults=list(faults), **fields)
        for server in servers.values():
            server.world = world
        return world

    return make


@pytest.fixture(params=["blocking", "asynchronous"])
def caller(request: pytest.FixtureRequest, servers: dict[str, ScriptedGateway]) -> Caller:
    return Caller(request.param == "asynchronous", list(servers))


def names(world: World) -> list[str]:
    return [type(call).__name__.removesuffix("Request") for call in world.calls]


@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("fault", [BROKEN, DRAINING])
def test_a_stream_that_breaks_anywhere(
    caller: Caller, set_world: Callable[..., World], remembers: bool, fault: Fault
) -> None:
    total = len(list(responses("", [], 1, 2)))
    for after in range(total):
        world = set_world(Fault(after, fault.code, fault.reason), remembers=remembers)
        caller.generate().check_complete()
        if not after and fault is DRAINING:
            assert names(world) == ["Generate", "Generate"], "it was refused: there is nothing to resume"
        elif after and remembers:
            assert names(world) == ["Generate", "Resume"]
            arrived = [
                sum(1 for each in range(after) if each < 2 * LENGTHS[1] and each % 2 == index) for index in (0, 1)
            ]
            arrived[0] += max(0, after - 2 * LENGTHS[1])
            assert list(world.calls[1].from_token) == arrived[: min(after, 2)]  # type: ignore[attr-defined]
        else:
            assert names(world) == ["Generate", "Resume", "Generate"]
            assert world.calls[0] == world.calls[2]
        assert world.served_by[:2] == [0, 1], "the next server is asked at once"


def test_a_stream_that_breaks_again_and_again(caller: Caller, set_world: Callable[..., World]) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    for _ in range(15):
        faults = [Fault(rng.randrange(5), reason=rng.choice(["", "BACKEND_UNAVAILABLE"])) for _ in range(6)]
        chunk_lengths = [rng.randint(1, 4) for _ in range(12)]
        set_world(*faults, chunk_lengths=chunk_lengths, remembers=rng.random() < 0.5)
        print(f"seed {seed}, faults {faults}, chunks {chunk_lengths}")
        caller.generate(logprobs=0, stop=["."]).check_complete()


def test_the_second_stream_is_cut_otherwise(caller: Caller, set_world: Callable[..., World]) -> None:
    for first, second in [(2, 3), (3, 2), (1, 7), (4, 1)]:
        for after in range(1, 4):
            set_world(Fault(after), remembers=False, chunk_lengths=[first, second])
            caller.generate().check_complete()


def test_a_second_try_is_the_same_request(caller: Caller, set_world: Callable[..., World]) -> None:
    """It has a name and a seed of its own where the caller gave none; greedy ones and beams need no seed."""
    world = set_world(Fault(1), remembers=False)
    caller.generate()
    first, resumed, second = world.calls
    assert isinstance(first, inference_pb2.GenerateRequest)
    assert first == second
    assert first.request_id
    assert resumed.request_id == first.request_id  # type: ignore[attr-defined]
    assert first.sampling.HasField("seed")
    world = set_world()
    for arguments in ({}, {}, {"temperature": 0.0}, {"beam_width": 2}, {"seed": 7}, {"temperature": 0.5}):
        caller.generate(**arguments)
    seeds = [call.sampling.seed if call.sampling.HasField("seed") else None for call in world.calls]  # type: ignore[attr-defined]
    assert seeds[0] != seeds[1]
    assert seeds[2:5] == [None, None, 7]
    assert seeds[5] is not None
    assert len({call.request_id for call in world.calls}) == len(world.calls)  # type: ignore[attr-defined]


def test_the_request_runs_although_its_answer_never_began(caller: Caller, set_world: Callable[..., World]) -> None:
    """Its first stream broke, Resume broke, and Generate finds it running: Resume goes on."""
    world = set_world(BROKEN, Fault(code=grpc.StatusCode.NOT_FOUND, reason="REQUEST_UNKNOWN"), chunk_lengths=[2])
    world.running.add("mine")
    world.known["mine"] = 2
    caller.generate(request_id="mine").check_complete()
    assert names(world) == ["Generate", "Resume", "Generate", "Resume"]


def test_the_log_is_away(caller: Caller, set_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    """For a moment it is waited for, then the answer is asked for once more."""
    away = Fault(reason="STATE_UNAVAILABLE")
    world = set_world(Fault(3), away, away)
    caller.generate().check_complete()
    assert names(world) == ["Generate", *["Resume"] * 3]
    monkeypatch.setattr(generation, "_LOG_PATIENCE_SECONDS", 0.0)
    world = set_world(Fault(3), away)
    caller.generate().check_complete()
    assert names(world) == ["Generate", "Resume", "Generate"]


def test_an_earlier_try_takes_the_request_back(caller: Caller, set_world: Callable[..., World]) -> None:
    """Late, by what its server still wrote into the log; where there was no earlier try, another caller has it."""
    aborted = Fault(2, grpc.StatusCode.ABORTED, "RESUMED_ELSEWHERE")
    world = set_world(Fault(3), aborted)
    caller.generate().check_complete()
    assert names(world) == ["Generate", "Resume", "Resume"]
    set_world(aborted)
    error = caller.generate().error
    assert error is not None
    assert error.reason == "RESUMED_ELSEWHERE"


def test_a_name_that_another_request_has(caller: Caller, set_world: Callable[..., World]) -> None:
    world = set_world()
    world.running.add("mine")
    error = caller.generate(request_id="mine").error
    assert error is not None
    assert error.status is grpc.StatusCode.ALREADY_EXISTS
    assert names(world) == ["Generate"]


def test_a_full_server_is_asked_again_when_it_says(caller: Caller, set_world: Callable[..., World]) -> None:
    full = Fault(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="QUEUE_FULL", retry_after=0.02)
    world = set_world(full, full)
    start = time.monotonic()
    caller.generate().check_complete()
    assert time.monotonic() - start >= 0.04
    assert names(world) == ["Generate"] * 3
    assert world.served_by == [0, 0, 0], "another server would be as full"


@pytest.mark.parametrize(
    "fault",
    [
        Fault(code=grpc.StatusCode.INVALID_ARGUMENT, reason="BAD"),
        Fault(code=grpc.StatusCode.NOT_FOUND, reason="MODEL_UNKNOWN"),
        Fault(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="TOO_LARGE"),
        Fault(code=grpc.StatusCode.UNAUTHENTICATED, reason="KEY_UNKNOWN"),
        Fault(code=grpc.StatusCode.DEADLINE_EXCEEDED, reason="TIMEOUT"),
        Fault(after=3, code=grpc.StatusCode.INTERNAL, reason="BUG"),
        Fault(after=3, code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="OUT_OF_MEMORY", retry_after=0.01),
    ],
)
def test_what_another_try_would_not_help(caller: Caller, set_world: Callable[..., World], fault: Fault) -> None:
    world = set_world(fault)
    error = caller.generate().error
    assert error is not None
    assert (error.status, error.reason) == (fault.code, fault.reason)
    assert len(world.calls) == 1


def test_no_retries(caller: Caller, set_world: Callable[..., World]) -> None:
    world = set_world(Fault(3))
    received = caller.generate(retry=None)
    assert received.error is not None
    assert received.error.status is grpc.StatusCode.UNAVAILABLE
    assert sum(map(len, received.token_ids.values())) == 3
    assert len(world.calls) == 1


def test_patience_ends(caller: Caller, set_world: Callable[..., World]) -> None:
    for policy, faults in [
        (RetryPolicy(start_patience=0, patience=60), [DRAINING] * 50),
        (RetryPolicy(start_patience=60, patience=0), [Fault(1), *[DRAINING] * 50]),
    ]:
        world = set_world(*faults)
        error = caller.generate(retry=policy).error
        assert error is not None
        assert (error.status, error.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert len(world.calls) == 2, "each server is asked once"


def test_the_timeout_is_that_of_all_tries(caller: Caller, set_world: Callable[..., World]) -> None:
    world = set_world(*[DRAINING] * 10_000)
    start = time.monotonic()
    error = caller.generate(timeout=0.2).error
    assert time.monotonic() - start >= 0.199
    assert error is not None
    assert (error.status, error.field) == (grpc.StatusCode.DEADLINE_EXCEEDED, "timeout")
    assert "DRAINING" in error.message.upper()
    timeouts = [call.timeout.ToMicroseconds() for call in world.calls]  # type: ignore[attr-defined]
    assert timeouts[0] == 200_000
    assert timeouts == sorted(timeouts, reverse=True)
    assert timeouts[-1] < 200_000


def test_a_wait_beyond_the_timeout_is_not_begun(caller: Caller, set_world: Callable[..., World]) -> None:
    world = set_world(Fault(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="QUEUE_FULL", retry_after=5.0))
    error = caller.generate(timeout=2.0).error
    assert error is not None
    assert error.reason == "QUEUE_FULL"
    assert len(world.calls) == 1


def test_a_server_that_is_not_there(caller: Caller, set_world: Callable[..., World]) -> None:
    """The next one answers, and is asked first from then on."""
    world = set_world()
    caller.addresses = [f"127.0.0.1:{free_port()}", *caller.addresses]
    caller.generate().check_complete()
    assert caller.call("tokenize", "x") == [1, 2]
    assert caller.call("pin", "x", ttl=60).pin_id == "pin0"
    assert set(world.served_by) == {0}


def test_questions_are_asked_again(caller: Caller, set_world: Callable[..., World]) -> None:
    set_world(BROKEN, DRAINING)
    assert caller.call("tokenize", "x") == [1, 2]
    set_world(BROKEN, DRAINING)
    assert [model.name for model in caller.call("models")] == ["known"]
    set_world(BROKEN, pins=["mine"])
    assert [pin.pin_id for pin in caller.call("pins")] == ["mine"]
    set_world(BROKEN)
    with pytest.raises(OctavoError, match="UNAVAILABLE"):
        caller.call("pins", retry=None)
    set_world(*[BROKEN] * 10_000)
    with pytest.raises(OctavoError) as caught:
        caller.call("models", timeout=0.1)
    assert caught.value.status is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_prefix_is_not_pinned_twice(caller: Caller, set_world: Callable[..., World]) -> None:
    """A refusal is got over; where the outcome is unknown the caller is told."""
    world = set_world(None, DRAINING)
    assert caller.call("pin", "x", ttl=60).pin_id == "pin0"
    assert names(world) == ["ListModels", "PinPrefix", "PinPrefix"]
    world = set_world(None, BROKEN)
    with pytest.raises(OctavoError) as caught:
        caller.call("pin", "x", ttl=60)
    assert not caught.value.from_server
    assert names(world) == ["ListModels", "PinPrefix"]


def test_a_pin_that_went_although_the_answer_was_lost(caller: Caller, set_world: Callable[..., World]) -> None:
    world = set_world(BROKEN, pins=["mine"])
    caller.call("unpin", "mine")
    assert names(world) == ["UnpinPrefix"] * 2
    assert world.pins == []
    set_world(DRAINING)
    with pytest.raises(OctavoError) as caught:
        caller.call("unpin", "never there")
    assert caught.value.status is grpc.StatusCode.NOT_FOUND

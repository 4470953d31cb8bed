"""Several executors behind one KV manager: who joins, who leaves, and that requests do not notice."""

from __future__ import annotations

import asyncio
import logging
import socket

import grpc
import pytest

from octavo.client import OctavoError
from octavo.v1 import inference_pb2, kvmanager_pb2, memory_pb2
from services.kvmanager import executor_link
from tests.oracle import expected_output
from tests.services.kvmanager.conftest import MakeRig, Rig
from tests.services.kvmanager.oracle_service import BLOCK_SIZE, OracleService

LONG = 120
NO_STOP: frozenset[int] = frozenset()


def prompt_of(number: int, length: int = 10) -> list[int]:
    """Prompts that share no block."""
    return [(number + 3 * index) % 50 for index in range(length)]


async def drain(rig: Rig, executor: OracleService) -> None:
    await rig.stub.DrainExecutor(kvmanager_pb2.DrainExecutorRequest(address=executor.address), timeout=30)


async def memory_by_executor(rig: Rig) -> dict[str, memory_pb2.ExecutorMemory]:
    return {each.executor: each for each in (await rig.memory_map()).executors}


async def add(rig: Rig, address: str) -> None:
    await rig.stub.AddExecutor(kvmanager_pb2.AddExecutorRequest(address=address), timeout=30)


async def test_requests_are_spread_over_replicas(make_rig: MakeRig) -> None:
    one, two = OracleService(), OracleService()
    rig = await make_rig(one, two)
    for executor in (one, two):
        executor.hold()
    replies = [await rig.gateway.submit(prompt_of(i), seed=i, max_tokens=20) for i in range(8)]
    await rig.eventually(lambda: len(rig.manager._requests) == 8, "all are there")
    state = await rig.memory_map()
    assert {each.executor for each in state.executors} == {one.address, two.address}
    assert [each.running_requests + each.waiting_requests for each in state.executors] == [4, 4]
    assert state.running_requests + state.waiting_requests == 8
    assert state.num_blocks == 200
    assert state.referenced_blocks == sum(each.device.referenced_blocks for each in state.executors) > 0
    for executor in (one, two):
        executor.go_on()
    for i, reply in enumerate(replies):
        await rig.gateway.finished(reply)
        assert reply.sequences[0] == expected_output(prompt_of(i), i, 0, 20, NO_STOP)
    await rig.when_idle()


async def test_a_request_goes_where_its_prefix_is(make_rig: MakeRig) -> None:
    rig = await make_rig(OracleService(), OracleService())
    prefix = prompt_of(1, 80)
    first = await rig.gateway.generate([*prefix, 1], max_tokens=2)
    assert first.usage.cached_tokens == 0
    for i in range(2, 6):
        reply = await rig.gateway.generate([*prefix, i], max_tokens=2)
        assert reply.usage.cached_tokens == len(prefix)


async def test_a_lost_executor_s_requests_go_on_with_the_other(make_rig: MakeRig) -> None:
    one, two = OracleService(), OracleService()
    rig = await make_rig(one, two)
    replies = [await rig.gateway.submit(prompt_of(i), seed=i, max_tokens=LONG, n=1 + i % 2) for i in range(6)]
    for reply in replies:
        await rig.gateway.wait_for_tokens(reply, 5)
    await one.kill()
    await rig.eventually(lambda: list(rig.manager.replicas) == [two.address], "the loss is noticed")
    assert rig.gateway.backends[-1].ready
    for i, reply in enumerate(replies):
        await rig.gateway.finished(reply)
        assert reply.usage.completion_tokens == LONG * (1 + i % 2)
        for index, tokens in reply.sequences.items():
            assert tokens == expected_output(prompt_of(i), i, index, LONG, NO_STOP)
    await one.start()
    await rig.eventually(rig.all_attached, "it is back")
    await rig.when_idle()


async def test_draining_waits_for_what_runs_and_moves_what_waits(make_rig: MakeRig) -> None:
    one, two = OracleService(), OracleService()
    rig = await make_rig(one, two, max_sequences=2, max_batched_tokens=64)
    for executor in (one, two):
        executor.hold()
    replies = [await rig.gateway.submit(prompt_of(i), seed=i, max_tokens=30) for i in range(8)]
    await rig.eventually(lambda: len(rig.manager._requests) == 8, "all are there")
    before = await memory_by_executor(rig)
    assert before[one.address].running_requests
    assert before[one.address].waiting_requests

    leaving = [asyncio.create_task(drain(rig, one)) for _ in range(2)]
    await rig.eventually(lambda: rig.manager.replicas[one.address].draining, "it drains")
    after = await memory_by_executor(rig)
    assert {address for address, memory in after.items() if memory.draining} == {one.address}
    assert after[one.address].running_requests == before[one.address].running_requests
    assert after[one.address].waiting_requests == 0
    assert after[two.address].waiting_requests == sum(memory.waiting_requests for memory in before.values())
    with pytest.raises(grpc.RpcError) as caught:
        await add(rig, one.address)
    assert caught.value.code() == grpc.StatusCode.ALREADY_EXISTS
    two.go_on()
    await rig.eventually(
        lambda: sum(reply.end is not None for reply in replies) == 8 - before[one.address].running_requests,
        "all that do not run on the one that drains have ended",
    )
    assert not any(task.done() for task in leaving)
    one.go_on()
    await asyncio.gather(*leaving)
    assert list(rig.manager.replicas) == [two.address]
    for i, reply in enumerate(replies):
        await rig.gateway.finished(reply)
        assert reply.sequences[0] == expected_output(prompt_of(i), i, 0, 30, NO_STOP)

    num_batches = len(one.batches)
    late = await rig.gateway.generate(prompt_of(9), seed=9, max_tokens=5)
    assert late.sequences[0] == expected_output(prompt_of(9), 9, 0, 5, NO_STOP)
    assert len(one.batches) == num_batches
    assert all(backend.ready for backend in rig.gateway.backends[1:])
    await add(rig, one.address)
    await rig.eventually(rig.all_attached, "it has joined again")
    await rig.when_idle()


@pytest.mark.parametrize("num_steps_before", [0, 3])
async def test_no_request_is_lost_to_a_step_without_memory(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, num_steps_before: int
) -> None:
    monkeypatch.setattr(executor_link, "EXHAUSTED_SECONDS", 0.01)
    executor = OracleService()
    rig = await make_rig(executor)
    executor.hold()
    replies = [await rig.gateway.submit(prompt_of(i), seed=i, max_tokens=30, n=1 + i % 2) for i in range(6)]
    if num_steps_before:
        executor.go_on()
        await rig.eventually(lambda: len(executor.batches) >= num_steps_before, "it has begun")
        executor.hold()
    executor.num_exhausted = 3
    executor.go_on()
    for i, reply in enumerate(replies):
        await rig.gateway.finished(reply)
        for index in range(1 + i % 2):
            assert reply.sequences[index] == expected_output(prompt_of(i), i, index, 30, NO_STOP)
    assert executor.num_exhausted == 0
    away = [record for record in caplog.records if record.getMessage() == "executor away"]
    said = [record.reason for record in away if record.levelno >= logging.WARNING]
    # Where a write fails at the very moment when the status comes, gRPC makes one of its own (`set_internal_error`).
    said = [reason for reason in said if reason != "INTERNAL: Internal error from Core"]
    assert said == ["RESOURCE_EXHAUSTED: no memory to compute the step"], "it is said once"
    await rig.when_idle()


async def test_blocks_outlast_the_connection_that_filled_them(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(executor_link, "EXHAUSTED_SECONDS", 0.01)
    caplog.set_level(logging.INFO)
    executor = OracleService()
    rig = await make_rig(executor)
    await rig.gateway.generate(prompt_of(1), seed=1, max_tokens=5)
    epoch, executor.num_exhausted = executor.epoch, 1
    await rig.gateway.generate(prompt_of(2), seed=2, max_tokens=5)
    assert executor.epoch > epoch
    warm = await rig.gateway.generate(prompt_of(1), seed=3, max_tokens=5)
    assert warm.sequences[0] == expected_output(prompt_of(1), 3, 0, 5, NO_STOP)
    assert warm.usage.cached_tokens >= (len(prompt_of(1)) - 1) // BLOCK_SIZE * BLOCK_SIZE
    attached = [record for record in caplog.records if record.getMessage() == "executor attached"]
    assert attached[0].stored_blocks == 0  # type: ignore[attr-defined]
    assert attached[-1].stored_blocks > 0  # type: ignore[attr-defined]
    await rig.when_idle()


def test_the_pause_after_steps_without_memory_grows() -> None:
    pauses = [executor_link.exhausted_pause(number) for number in range(8)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 1 < 10 < sum(pauses[:4]), "one failure is soon forgotten; five in a row give a request up"
    assert pauses[-1] == pauses[-2] == executor_link.MOST_EXHAUSTED_SECONDS


async def test_draining_goes_on_when_nobody_waits_for_it(make_rig: MakeRig) -> None:
    one, two = OracleService(), OracleService()
    rig = await make_rig(one, two)
    one.hold()
    two.hold()
    replies = [await rig.gateway.submit(prompt_of(i), seed=i, max_tokens=5) for i in range(2)]
    await rig.eventually(lambda: not any(each.idle for each in rig.manager.replicas.values()), "both have one")
    request = kvmanager_pb2.DrainExecutorRequest(address=one.address)
    with pytest.raises(grpc.RpcError) as caught:
        await rig.stub.DrainExecutor(request, timeout=0.2)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    one.go_on()
    await rig.eventually(lambda: list(rig.manager.replicas) == [two.address], "it has left")
    two.go_on()
    for i, reply in enumerate(replies):
        await rig.gateway.finished(reply)
        assert reply.sequences[0] == expected_output(prompt_of(i), i, 0, 5, NO_STOP)


async def test_an_executor_that_is_lost_while_it_drains_has_left(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it is back before anybody looks: it gets nothing more."""
    monkeypatch.setattr("services.kvmanager.executors.POLL_SECONDS", 0.5)
    one, two = OracleService(), OracleService()
    rig = await make_rig(one, two)
    one.hold()
    replies = [await rig.gateway.submit(prompt_of(i), seed=i, max_tokens=20) for i in range(4)]
    await rig.eventually(lambda: not rig.manager.replicas[one.address].idle, "it has something to do")
    leaving = asyncio.create_task(drain(rig, one))
    await rig.eventually(lambda: rig.manager.replicas[one.address].draining, "it drains")
    two.hold()
    await one.kill()
    one.go_on()
    one.batches.clear()
    await one.start()
    await leaving
    assert list(rig.manager.replicas) == [two.address]
    assert one.batches == []
    two.go_on()
    for i, reply in enumerate(replies):
        await rig.gateway.finished(reply)
        assert reply.sequences[0] == expected_output(prompt_of(i), i, 0, 20, NO_STOP)


async def test_the_last_executor_drains_and_another_takes_over(make_rig: MakeRig) -> None:
    """Gateways hear that nothing takes requests; those that come all the same wait for the next executor."""
    one = OracleService()
    rig = await make_rig(one)
    one.hold()
    running = await rig.gateway.submit(prompt_of(1), seed=1, max_tokens=10)
    await rig.eventually(lambda: not rig.manager.idle, "it runs")
    leaving = asyncio.create_task(drain(rig, one))
    await rig.gateway.wait_for_backend(ready=False)
    late = await rig.gateway.submit(prompt_of(2), seed=2, max_tokens=10)
    one.go_on()
    await leaving
    assert (await rig.gateway.finished(running)).sequences[0] == expected_output(prompt_of(1), 1, 0, 10, NO_STOP)
    assert not late.sequences
    state = await rig.memory_map()
    assert (len(state.executors), state.num_blocks, state.waiting_requests) == (0, 0, 1)

    other = OracleService(num_blocks=40)
    rig.executors.append(other)
    await other.start()
    await add(rig, other.address)
    assert (await rig.gateway.wait_for_backend(ready=True)).model.num_blocks == 40
    assert (await rig.gateway.finished(late)).sequences[0] == expected_output(prompt_of(2), 2, 0, 10, NO_STOP)


async def test_an_executor_that_is_added_before_it_runs_joins_when_it_does(make_rig: MakeRig) -> None:
    """And waiting requests are shared with it."""
    one, two = OracleService(), OracleService(num_blocks=200)
    rig = await make_rig(one, max_sequences=1, max_batched_tokens=64)
    await add(rig, two.address)
    one.hold()
    replies = [await rig.gateway.submit(prompt_of(i), seed=i, max_tokens=10) for i in range(5)]
    await rig.eventually(lambda: rig.manager.num_waiting == 4, "four wait")
    rig.executors.append(two)
    await two.start()
    await rig.eventually(lambda: any(reply.end is not None for reply in replies), "the new one took some")
    assert rig.gateway.backends[-1].model.num_blocks == 200
    one.go_on()
    for i, reply in enumerate(replies):
        await rig.gateway.finished(reply)
        assert reply.sequences[0] == expected_output(prompt_of(i), i, 0, 10, NO_STOP)


@pytest.mark.parametrize(
    ("field", "value"), [("name", "another"), ("block_size", 8), ("vocab_size", 51), ("max_model_len", 300)]
)
async def test_an_executor_of_another_model_is_refused(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, field: str, value: object
) -> None:
    """One line says why. It is asked again: started anew as a replica, it joins."""
    monkeypatch.setattr("services.kvmanager.executor_link.REFUSED_SECONDS", 0.05)
    one, other = OracleService(), OracleService(**{field: value})
    rig = await make_rig(one)
    await other.start()
    with caplog.at_level(logging.WARNING):
        await add(rig, other.address)
        await rig.eventually(lambda: "executor refused" in caplog.messages, "it is refused")
        assert (await rig.gateway.generate(prompt_of(1), seed=1, max_tokens=5)).usage.completion_tokens == 5
        await asyncio.sleep(0.2)  # it is asked several times
    (record,) = [each for each in caplog.records if each.message == "executor refused"]
    wanted = getattr(one.model, field)
    whose = "the first executor" if field in ("name", "vocab_size") else one.address
    assert record.reason == f"its model's {field} is {value!r}; that of {whose} is {wanted!r}"  # type: ignore[attr-defined]
    assert record.address == other.address  # type: ignore[attr-defined]
    assert other.batches == []
    await other.kill()
    other.model.CopyFrom(one.model)
    await other.start()
    rig.executors.append(other)
    await rig.eventually(rig.all_attached, "it has joined")


async def test_a_lone_executor_may_come_back_with_other_limits_but_not_as_another_model(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request goes on where it was; the tokens of another model would be a strange ending."""
    monkeypatch.setattr("services.kvmanager.executor_link.REFUSED_SECONDS", 0.05)
    one = OracleService()
    rig = await make_rig(one)
    reply = await rig.gateway.submit(prompt_of(1), seed=1, max_tokens=LONG)
    await rig.gateway.wait_for_tokens(reply, 5)
    await one.kill()
    one.model.name = "another"
    await one.start()
    await rig.eventually(lambda: "executor refused" in caplog.messages, "it is refused")
    await one.kill()
    one.model.MergeFrom(inference_pb2.Model(name="oracle", block_size=8, max_model_len=200))
    await one.start()
    assert (await rig.gateway.finished(reply)).sequences[0] == expected_output(prompt_of(1), 1, 0, LONG, NO_STOP)
    model = rig.gateway.backends[-1].model
    assert (model.block_size, model.max_model_len) == (8, 200)


async def test_one_executor_under_two_names_is_taken_once(make_rig: MakeRig, caplog: pytest.LogCaptureFixture) -> None:
    """Two connections would fence each other off for ever."""
    one = OracleService()
    with caplog.at_level(logging.WARNING):
        port = one.address.rpartition(":")[2]
        rig = await make_rig(one)
        await add(rig, f"localhost:{port}")
        await rig.eventually(lambda: "executor refused" in caplog.messages, "the second is refused")
    (record,) = [each for each in caplog.records if each.message == "executor refused"]
    assert record.reason == f"it is the executor that is connected at {one.address}"  # type: ignore[attr-defined]
    reply = await rig.gateway.generate(prompt_of(1), seed=1, max_tokens=30)
    assert reply.sequences[0] == expected_output(prompt_of(1), 1, 0, 30, NO_STOP)
    assert rig.gateway.backends[-1].epoch == one.epoch


async def test_epochs_are_each_executor_s_own(make_rig: MakeRig) -> None:
    one, two = OracleService(), OracleService()
    two.epoch = 70
    rig = await make_rig(one, two)
    replies = [await rig.gateway.submit(prompt_of(i), seed=i, max_tokens=10) for i in range(4)]
    for reply in replies:
        await rig.gateway.finished(reply)
    for executor in (one, two):
        assert {batch.epoch for batch in executor.batches} == {executor.epoch}
        assert [batch.step for batch in executor.batches] == list(range(1, len(executor.batches) + 1))
    assert one.epoch != two.epoch > 70
    assert rig.gateway.backends[-1].epoch == max(one.epoch, two.epoch)


@pytest.mark.parametrize(
    ("method", "address", "status", "word"),
    [
        ("AddExecutor", "", grpc.StatusCode.INVALID_ARGUMENT, "not a host:port address"),
        ("AddExecutor", "nowhere", grpc.StatusCode.INVALID_ARGUMENT, "'nowhere'"),
        ("AddExecutor", "known", grpc.StatusCode.ALREADY_EXISTS, "is in the list"),
        ("DrainExecutor", "a:b", grpc.StatusCode.INVALID_ARGUMENT, "'a:b'"),
        ("DrainExecutor", "127.0.0.1:1", grpc.StatusCode.NOT_FOUND, "there is no executor 127.0.0.1:1"),
    ],
)
async def test_addresses_that_make_no_sense(
    make_rig: MakeRig, method: str, address: str, status: grpc.StatusCode, word: str
) -> None:
    one = OracleService()
    rig = await make_rig(one)
    request = getattr(kvmanager_pb2, f"{method}Request")(address=one.address if address == "known" else address)
    with pytest.raises(grpc.RpcError) as caught:
        await getattr(rig.stub, method)(request)
    error = OctavoError.from_rpc(caught.value)
    assert (error.status, error.field) == (status, "address")
    assert word in error.message


async def test_a_name_that_stands_for_several_addresses(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """They join and leave as the name says; one that still answers stays."""
    monkeypatch.setattr("services.kvmanager.discovery.LOOK_UP_SECONDS", 0.02)
    executors = [OracleService() for _ in range(3)]
    for executor in executors:
        await executor.start()
    known: list[OracleService] = []

    def look_up(host: str, port: int, *_: object, **__: object) -> list[tuple[object, ...]]:
        if host != "executors.test":
            return real(host, port, *_, **__)
        if not known:
            raise socket.gaierror("no such name")
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", int(each.address.rpartition(":")[2])))
            for each in known
        ]

    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    rig = await make_rig(executors="executors.test:50053")
    addresses = [executor.address for executor in executors]
    known.append(executors[0])
    await rig.eventually(lambda: set(rig.manager.replicas) == {addresses[0]}, "the first joins")
    known += executors[1:]
    await rig.eventually(lambda: set(rig.manager.replicas) == set(addresses), "the others join")
    await drain(rig, executors[2])
    known.remove(executors[0])
    links = rig.service.term.executors
    await executors[1].kill()
    known.remove(executors[1])
    await rig.eventually(lambda: addresses[1] not in links, "who is gone in both ways is forgotten")
    assert set(rig.manager.replicas) == {addresses[0]}  # the drained one is not taken again
    for executor in executors:
        await executor.kill()

"""Two executors of one model behind one KV manager: requests use both, and outlive either."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from octavo.v1 import kvmanager_pb2
from tests.services.e2e.calls import Call, Caller
from tests.services.e2e.processes import PATIENCE, SERVING, Processes, Server, eventually
from tests.services.e2e.stack import Stack, make_executor
from tests.services.e2e.tiny_model import Reference
from tests.services.memory_picture import MemoryPicture

LONG: dict[str, Any] = {"max_tokens": 250, "ignore_eos": True}
# Small enough that a host block is seen as one among few.
EXECUTOR: dict[str, Any] = {"host_memory": "1MiB"}


def mixed_requests() -> list[dict[str, Any]]:
    """Greedy ones, seeded ones, and one of three seeded sequences with log probabilities."""
    return [
        {"prompt": "greedy one", **LONG},
        {"prompt": "greedy two " * 20, "max_tokens": 150, "ignore_eos": True},
        {"prompt": "seeded", "temperature": 0.8, "seed": 21, **LONG},
        {"prompt": "three seeded", "temperature": 1, "seed": 22, "n": 3, "logprobs": 1, **LONG},
        {"prompt": "greedy three", **LONG},
        {"prompt": "greedy four", **LONG},
    ]


@pytest.fixture(scope="module")
def executors(processes: Processes, model: Path) -> list[Server]:
    """Those of all tests here, one after the other. They need not run."""
    return [make_executor(processes, model, **EXECUTOR) for _ in range(3)]


@pytest.fixture
def stack(processes: Processes, model: Path, executors: list[Server]) -> Iterator[Stack]:
    """Two of the executors; the third is for whoever adds it."""
    stack = Stack(processes, model, executors[0], replicas=[executors[1]])
    stack.start()
    yield stack
    stack.close()


@pytest.fixture(scope="module", autouse=True)
def end(executors: list[Server]) -> Iterator[None]:
    yield
    for executor in executors:
        executor.kill()


def start(stack: Stack, requests: list[dict[str, Any]]) -> tuple[list[Call], Server, Server]:
    """All of them run. Returns also the executor that has most of them, and the other."""
    one, two = stack.executors
    with one.held(), two.held():
        calls = [stack.caller.start(**request) for request in requests]
        stack.wait_for_requests_in_total(len(requests))
    for call in calls:
        call.wait_for_tokens(5)
    memory = stack.memory_by_executor()
    if memory[one.address].running_requests < memory[two.address].running_requests:
        one, two = two, one
    assert memory[one.address].running_requests > 0
    return calls, one, two


def add(stack: Stack, executor: Server) -> None:
    stack.inner.AddExecutor(kvmanager_pb2.AddExecutorRequest(address=executor.address), timeout=PATIENCE)


def drain(stack: Stack, executor: Server) -> None:
    stack.inner.DrainExecutor(kvmanager_pb2.DrainExecutorRequest(address=executor.address), timeout=PATIENCE)


def test_one_of_two_is_killed(stack: Stack, caller: Caller) -> None:
    """Every stream goes on with the other: no token lost, repeated or changed, no error. Then it returns."""
    undisturbed = [answer.all_token_ids() for answer in caller.generate_all(mixed_requests())]
    calls, killed, other = start(stack, mixed_requests())
    killed.kill()
    stack.wait_for_executors(other)
    assert stack.gateway.health() == SERVING
    assert stack.kvmanager.health() == SERVING
    assert [call.result().all_token_ids() for call in calls] == undisturbed
    assert len(calls[3].result().sequences[2].logprobs) == LONG["max_tokens"]
    killed.start()
    stack.wait_for_executors(*stack.executors)
    calls, _, _ = start(stack, mixed_requests())
    assert [call.result().all_token_ids() for call in calls] == undisturbed
    stack.wait_until_idle()


def test_executors_are_replaced_while_answers_stream(
    stack: Stack, executors: list[Server], reference: Reference
) -> None:
    """A third is added, one of the first two is drained and ends, and comes back under its old address."""
    three = executors[2]
    three.start()
    three.wait_until_serving()
    calls, one, two = start(stack, [{"prompt": f"stays {i}", **LONG} for i in range(4)])
    add(stack, three)
    stack.wait_for_executors(one, two, three)
    with ThreadPoolExecutor(1) as pool:
        with one.held():
            leaving = pool.submit(drain, stack, one)
            eventually(lambda: stack.memory_by_executor()[one.address].draining, what="it drains")
            meanwhile = [stack.caller.start(f"comes {i}", max_tokens=50, ignore_eos=True) for i in range(4)]
            for call in meanwhile:
                call.result()
            assert not leaving.done()
        leaving.result(PATIENCE)
    stack.wait_for_executors(two, three)
    assert one.running
    one.terminate()
    assert one.wait() == 0
    for i, call in enumerate(calls):
        assert call.result().token_ids == reference.greedy(reference.encode(f"stays {i}"), LONG["max_tokens"])
    for i, call in enumerate(meanwhile):
        assert call.result().token_ids == reference.greedy(reference.encode(f"comes {i}"), 50)
    one.start()
    add(stack, one)
    stack.wait_for_executors(one, two, three)
    drain(stack, three)
    stack.wait_for_executors(one, two)
    three.kill()
    assert stack.caller.generate("as before", max_tokens=1).complete
    stack.wait_until_idle()


def test_a_prompt_goes_where_its_beginning_is(stack: Stack, reference: Reference) -> None:
    """Whatever the order in which prompts come back."""
    beginnings = [f"{name} begins, and goes on for a long time before anything else is said " * 4 for name in "ABCD"]
    for beginning in beginnings:
        stack.caller.generate(beginning, max_tokens=2, ignore_eos=True)
    for number, beginning in enumerate(reversed(beginnings)):
        prompt = reference.encode(f"{beginning}question {number}")
        answer = stack.caller.generate(prompt, max_tokens=5, ignore_eos=True)
        assert answer.token_ids == reference.greedy(prompt, 5)
        assert answer.usage is not None
        assert answer.usage.cached_tokens >= (len(reference.encode(beginning)) - 1) // 16 * 16


class Watcher:
    """Follows the memory map on a thread."""

    def __init__(self, stack: Stack) -> None:
        request = kvmanager_pb2.WatchMemoryRequest(interval=Duration(nanos=20_000_000))
        self._messages = stack.inner.WatchMemory(request, timeout=2 * PATIENCE)
        self._stack = stack
        self._picture = MemoryPicture()
        self._end: grpc.StatusCode | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        try:
            for message in self._messages:
                with self._lock:
                    self._picture.take(message)
        except grpc.RpcError as error:
            self._end = error.code()

    def _agrees(self) -> bool:
        state = self._stack.memory_map(include_blocks=True)
        with self._lock:
            return self._picture.equals(state)

    def wait_until_it_agrees(self) -> None:
        """With a map that is asked for."""
        assert self._thread.is_alive()
        eventually(self._agrees, what="the watch and the map agree")

    def close(self) -> None:
        self._messages.cancel()
        self._thread.join(PATIENCE)
        assert self._end == grpc.StatusCode.CANCELLED


def test_a_watch_follows_both(stack: Stack) -> None:
    """Under load, after a loss, and when all is quiet again."""
    watcher = Watcher(stack)
    watcher.wait_until_it_agrees()
    calls, one, two = start(stack, mixed_requests())
    with one.held(), two.held():
        watcher.wait_until_it_agrees()
        assert stack.memory_map().referenced_blocks > 0
    one.kill()
    stack.wait_for_executors(two)
    with two.held():
        watcher.wait_until_it_agrees()
    for call in calls:
        assert call.result().complete
    one.start()
    stack.wait_for_executors(one, two)
    stack.wait_until_idle()
    watcher.wait_until_it_agrees()
    watcher.close()


def test_kv_events_from_the_beginning_say_what_is_cached(stack: Stack) -> None:
    """Though nobody listened when it was cached. An executor's end clears what it had."""
    calls, one, two = start(stack, mixed_requests())
    for call in calls:
        assert call.result().complete
    one.kill()
    stack.wait_for_executors(two)
    one.start()
    stack.wait_for_executors(one, two)
    for i in range(4):
        stack.caller.generate(f"{i} comes later " * 10, max_tokens=3, ignore_eos=True)
    state = stack.memory_map(include_blocks=True)
    wanted = {
        (memory.executor, block.tier, block.identity_prefix)
        for memory in state.executors
        for block in memory.blocks
        if block.cached
    }
    assert {executor for executor, _, _ in wanted} <= {one.address, two.address}
    request = kvmanager_pb2.SubscribeKvEventsRequest(from_sequence_number=1)
    messages = stack.inner.SubscribeKvEvents(request, timeout=PATIENCE)
    held: set[tuple[str, int, bytes]] = set()
    number, num_cleared = 1, 0
    for message in messages:
        assert message.sequence_number == number
        number += len(message.events)
        for event in message.events:
            match event.WhichOneof("event"):
                case "stored":
                    held.add((message.executor, event.stored.tier, event.stored.identity[:8]))
                case "removed":
                    held.remove((message.executor, event.removed.tier, event.removed.identity[:8]))
                case "cleared":
                    num_cleared += 1
                    held = {key for key in held if key[0] != message.executor}
        if held == wanted and num_cleared == 1:
            break
    messages.cancel()
    assert held == wanted

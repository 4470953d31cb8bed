"""Clients that leave and requests whose time is over: their blocks come back, and nobody else notices."""

from __future__ import annotations

import sys
import time
from typing import Any

import grpc
import pytest

from octavo.client import generate_request
from octavo.v1 import inference_pb2_grpc
from tests.services.e2e.calls import Call, Caller
from tests.services.e2e.conftest import MakeStack
from tests.services.e2e.processes import Processes, eventually
from tests.services.e2e.stack import Stack
from tests.services.e2e.tiny_model import Reference

LONG: dict[str, Any] = {"max_tokens": 480, "ignore_eos": True}


def start_witnesses(caller: Caller) -> list[Call]:
    """Requests that go on while others leave."""
    return [caller.start(f"witness {i}", max_tokens=200, ignore_eos=True) for i in range(2)]


def check_witnesses(calls: list[Call], reference: Reference) -> None:
    for i, call in enumerate(calls):
        assert call.result().token_ids == reference.greedy(reference.encode(f"witness {i}"), 200)


def test_a_client_that_cancels(stack: Stack, caller: Caller, reference: Reference) -> None:
    """Its requests are gone before another step has run, and the others go on."""
    calls = [caller.start(f"leaves {i}", n=4, temperature=1, **LONG) for i in range(3)]
    witnesses = start_witnesses(caller)
    for call in (*calls, *witnesses):
        call.wait_for_tokens(3)
    with stack.executor.held():
        for call in calls:
            call.cancel()
        stack.wait_for_requests(running=2)
    for call in calls:
        assert call.error().status == grpc.StatusCode.CANCELLED
    check_witnesses(witnesses, reference)
    stack.wait_until_idle(5)


def test_blocks_are_free_although_nothing_else_runs(stack: Stack, caller: Caller) -> None:
    """No later request is needed to get them back."""
    call = caller.start("alone", n=8, temperature=1, **LONG)
    call.wait_for_tokens(8)
    with stack.executor.held():
        assert stack.memory_map().referenced_blocks > 0
        call.cancel()
        stack.wait_for_requests(running=0)
    stack.wait_until_idle(5)


def test_a_client_that_leaves_while_its_prompt_is_computed_or_waits(make_stack: MakeStack) -> None:
    stack = make_stack(kvmanager={"max_sequences": 1, "max_batched_tokens": 16})
    stack.executor.pause()
    calls = [stack.caller.start([9] * 300, max_tokens=5), stack.caller.start("waits", max_tokens=5)]
    stack.wait_for_requests(running=1, waiting=1)
    assert stack.memory_map().referenced_blocks > 0
    for call in calls:
        call.cancel()
    stack.wait_for_requests(running=0)
    stack.executor.go_on()
    stack.wait_until_idle()
    assert len(stack.caller.generate("after", max_tokens=5, ignore_eos=True).token_ids) == 5


def test_a_client_process_that_is_killed(
    stack: Stack, caller: Caller, reference: Reference, processes: Processes
) -> None:
    command = [sys.executable, "-m", "tests.services.e2e.client", stack.gateway.address, "killed", "8"]
    client = processes.other("client", command)
    client.start()
    eventually(lambda: "reading" in client.output(), what="the client reads")
    witnesses = start_witnesses(caller)
    for call in witnesses:
        call.wait_for_tokens(1)
    with stack.executor.held():
        stack.wait_for_requests(running=3)
        client.kill()
        stack.wait_for_requests(running=2)
    check_witnesses(witnesses, reference)
    stack.wait_until_idle(5)


def test_a_client_that_does_not_read(stack: Stack, caller: Caller, reference: Reference) -> None:
    """It holds up nobody, and when it leaves its name is free again."""
    request = generate_request("deaf", request_id="deaf", sampling={"n": 32, **LONG})
    call = inference_pb2_grpc.GenerationServiceStub(caller.channel).Generate(request)
    stack.wait_for_requests(running=1)
    witnesses = start_witnesses(caller)
    check_witnesses(witnesses, reference)
    call.cancel()
    stack.wait_until_idle()
    assert caller.generate("x", request_id="deaf", max_tokens=1).complete


def test_the_requests_own_timeout(stack: Stack, caller: Caller, reference: Reference) -> None:
    witnesses = start_witnesses(caller)
    call = caller.start("late", n=32, temperature=1, timeout=0.3, **LONG)
    error = call.error()
    assert (error.status, error.field) == (grpc.StatusCode.DEADLINE_EXCEEDED, "timeout")
    check_witnesses(witnesses, reference)
    stack.wait_until_idle(5)


def test_a_grpc_deadline(stack: Stack, caller: Caller, reference: Reference) -> None:
    witnesses = start_witnesses(caller)
    call = caller.start("late", n=32, temperature=1, deadline=0.3, **LONG)
    assert call.error().status == grpc.StatusCode.DEADLINE_EXCEEDED
    eventually(lambda: stack.memory_map().running_requests <= 2, 5, "only the witnesses run")
    check_witnesses(witnesses, reference)
    stack.wait_until_idle(5)


@pytest.mark.parametrize("how", ["timeout", "deadline"])
def test_time_runs_in_the_queue_as_well(make_stack: MakeStack, reference: Reference, how: str) -> None:
    stack = make_stack(kvmanager={"max_sequences": 1})
    first = stack.caller.start("first", **LONG)
    first.wait_for_tokens(1)
    stack.executor.pause()
    start = time.monotonic()
    limit: dict[str, Any] = {how: 0.3}
    call = stack.caller.start("waits in vain", max_tokens=5, **limit)
    error = call.error()
    assert error.status == grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - start >= 0.29
    assert call.num_tokens == 0
    stack.wait_for_requests(running=1)
    stack.executor.go_on()
    assert first.result().token_ids == reference.greedy(reference.encode("first"), 480)
    stack.wait_until_idle()


def test_a_request_in_time_is_left_alone(caller: Caller) -> None:
    answer = caller.generate("in time", timeout=60, deadline=60, max_tokens=20, ignore_eos=True)
    assert len(answer.token_ids) == 20

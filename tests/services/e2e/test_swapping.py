"""Preemption by swapping, by computing again, and none for want of need: three ways to the same answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.v1 import common_pb2
from tests.services.e2e.calls import Answer
from tests.services.e2e.processes import Processes, Server
from tests.services.e2e.stack import Stack, make_executor
from tests.services.e2e.tiny_model import Reference

NUM_BLOCKS = 24
"""Of 16 tokens, 8 KiB each: room for three sequences of 128 tokens."""


def requests() -> list[dict[str, Any]]:
    """Together several times what fits; each decoding method is among them, and all run in the same steps."""
    several: list[dict[str, Any]] = []
    for i in range(2):
        several += [
            {"prompt": f"{i} is the number of the page", "max_tokens": 110},
            {"prompt": f"sample {i}", "temperature": 1, "seed": 30 + i, "max_tokens": 100, "logprobs": 0},
            {"prompt": f"a group of {i} " * 3, "n": 3, "temperature": 1, "seed": 40 + i, "max_tokens": 60},
            {"prompt": f"beams of {i} " * 2, "beam_width": 3, "n": 2, "max_tokens": 50, "temperature": None},
            {"prompt": f"best of {i} " * 2, "best_of": 3, "n": 2, "temperature": 1, "seed": 50 + i, "max_tokens": 50},
        ]
    return [request | {"ignore_eos": "beam_width" not in request} for request in several]


@pytest.fixture(scope="module")
def tight_executor(processes: Processes, model: Path) -> Iterator[Server]:
    executor = make_executor(processes, model, kv_memory=f"{8 * NUM_BLOCKS}KiB", host_memory="1MiB")
    yield executor
    executor.kill()


@pytest.fixture
def tight_stack(processes: Processes, model: Path, tight_executor: Server) -> Iterator[Callable[[str], Stack]]:
    stacks: list[Stack] = []

    def make(preemption: str) -> Stack:
        settings = {"max_batched_tokens": 64, "max_sequences": 16, "preemption": preemption}
        stack = Stack(processes, model, tight_executor, kvmanager=settings)
        stacks.append(stack)
        stack.start()
        return stack

    yield make
    for stack in stacks:
        stack.close()


@pytest.fixture(scope="module")
def undisturbed(shared_stack: Stack) -> list[Answer]:
    """In a pool where everything fits, one after the other."""
    return [shared_stack.caller.generate(**request) for request in requests()]


def check(answers: list[Answer], undisturbed: list[Answer]) -> None:
    for answer, wanted in zip(answers, undisturbed, strict=True):
        assert answer.all_token_ids() == wanted.all_token_ids()
        assert [each.text for each in answer.sequences.values()] == [each.text for each in wanted.sequences.values()]
        for score, wanted_score in zip(answer.all_scores(), wanted.all_scores(), strict=True):
            assert score == pytest.approx(wanted_score, abs=1e-3)
        assert answer.usage is not None
        assert wanted.usage is not None
        assert answer.usage.completion_tokens == wanted.usage.completion_tokens


@pytest.mark.parametrize("preemption", ["swap", "recompute", "auto"])
def test_the_same_answers(tight_stack: Callable[[str], Stack], undisturbed: list[Answer], preemption: str) -> None:
    stack = tight_stack(preemption)
    assert stack.memory_map().num_blocks == NUM_BLOCKS
    check(stack.caller.generate_all(requests()), undisturbed)
    counters = stack.memory_map().counters
    assert counters.preemptions > 0
    if preemption == "swap":
        assert counters.preemptions_by_swap == counters.preemptions
        assert counters.swapped_out_blocks > 0
        assert counters.swapped_in_blocks > 0
        assert counters.preempted_seconds > 0
    if preemption == "recompute":
        assert counters.preemptions_by_swap == 0
    stack.wait_until_idle()
    host = stack.memory_map(include_blocks=True).executors[0]
    assert host.host.referenced_blocks == 0
    assert all(block.owner or not block.cached for block in host.blocks if block.tier == common_pb2.TIER_HOST)


def test_greedy_answers_are_right(undisturbed: list[Answer], reference: Reference) -> None:
    """What the others are compared with."""
    for request, answer in zip(requests(), undisturbed, strict=True):
        if set(request) == {"prompt", "max_tokens", "ignore_eos"}:
            assert answer.token_ids == reference.greedy(reference.encode(request["prompt"]), request["max_tokens"])


def test_an_executor_lost_while_requests_are_swapped_out(
    tight_stack: Callable[[str], Stack], tight_executor: Server, undisturbed: list[Answer]
) -> None:
    """The host tier is lost with it; all is computed again."""
    stack = tight_stack("swap")
    calls = [stack.caller.start(**request) for request in requests()]
    calls[0].wait_for_tokens(60)
    tight_executor.kill()
    assert stack.memory_map().counters.swapped_out_blocks > 0
    tight_executor.start()
    check([call.result() for call in calls], undisturbed)
    stack.wait_until_idle()


def test_evicted_blocks_are_fetched_from_the_host(tight_stack: Callable[[str], Stack], reference: Reference) -> None:
    """The second level of the prefix cache: a beginning that had to give way is not computed again."""
    stack = tight_stack("auto")
    prompts = [reference.encode(f"{i} " + "a long beginning " * 12)[1:] for i in range(6)]
    for prompt in prompts:
        assert stack.caller.generate(prompt, max_tokens=8, ignore_eos=True).token_ids == reference.greedy(prompt, 8)
    assert stack.memory_map().counters.evicted_blocks > 0
    for prompt in prompts:
        answer = stack.caller.generate(prompt, max_tokens=8, ignore_eos=True)
        assert answer.token_ids == reference.greedy(prompt, 8)
        assert answer.usage is not None
        assert answer.usage.cached_tokens >= (len(prompt) - 1) // 16 * 16
    counters = stack.memory_map().counters
    assert counters.host_cached_prompt_tokens > 0
    assert counters.swapped_in_blocks > 0


def test_nothing_is_swapped_without_a_host_pool(processes: Processes, model: Path, undisturbed: list[Answer]) -> None:
    executor = make_executor(processes, model, kv_memory=f"{8 * NUM_BLOCKS}KiB", host_memory="0")
    settings = {"max_batched_tokens": 64, "max_sequences": 16, "preemption": "swap"}
    stack = Stack(processes, model, executor, kvmanager=settings)
    try:
        stack.start()
        assert stack.memory_map().executors[0].host.num_blocks == 0
        check(stack.caller.generate_all(requests()), undisturbed)
        counters = stack.memory_map().counters
        assert (counters.preemptions_by_swap, counters.swapped_out_blocks) == (0, 0)
        assert counters.preemptions > 0
        stack.wait_until_idle()
    finally:
        stack.close()
        executor.kill()

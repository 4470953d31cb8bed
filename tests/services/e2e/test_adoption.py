"""A KV manager that is killed, and another that goes on with what the executors hold in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.services.e2e.calls import Answer
from tests.services.e2e.conftest import MakeStack
from tests.services.e2e.processes import Processes
from tests.services.e2e.stack import Stack, make_executor
from tests.services.e2e.tiny_model import Reference

BLOCK_SIZE = 16


def restart_kv_manager(stack: Stack) -> None:
    """As `kill -9` does it, and whoever supervises it."""
    stack.kvmanager.kill()
    stack.kvmanager.start()
    stack.kvmanager.wait_until_serving()
    stack.wait_for_executors(*stack.executors)
    stack.gateway.wait_until_serving()


def cached_tokens(answer: Answer) -> int:
    assert answer.usage is not None
    return answer.usage.cached_tokens


def test_prompts_and_answers_are_known_to_the_next_kv_manager(make_stack: MakeStack, reference: Reference) -> None:
    """The same prompt, and one that goes on from its answer, hit what was computed under the KV manager before."""
    stack = make_stack()
    prompt = reference.encode("what was computed before the kill ") * 2
    first = stack.caller.generate(prompt, max_tokens=60, ignore_eos=True)
    conversation = [*prompt, *first.token_ids, 7, 8, 9]
    restart_kv_manager(stack)
    further = stack.caller.generate(conversation, max_tokens=20, ignore_eos=True)
    assert further.token_ids == reference.greedy(conversation, 20)
    # The last token of an answer has no keys and values: nothing was computed after it.
    assert cached_tokens(further) >= (len(prompt) + 59) // BLOCK_SIZE * BLOCK_SIZE > len(prompt) + BLOCK_SIZE
    again = stack.caller.generate(prompt, max_tokens=60, ignore_eos=True)
    assert again.token_ids == first.token_ids == reference.greedy(prompt, 60)
    assert cached_tokens(again) >= (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE > BLOCK_SIZE
    stack.wait_until_idle()


@pytest.mark.slow
def test_kills_in_the_middle_of_streams(make_stack: MakeStack, reference: Reference) -> None:
    """The streams go on, others hit what they computed before the kill, and all are right."""
    stack = make_stack()
    prompts = [reference.encode(f"stream {number} ") * 4 for number in range(6)]
    expected = [reference.greedy(prompt, 120) for prompt in prompts]
    hits = 0
    for round_ in range(3):
        calls = [stack.caller.start(prompt, max_tokens=120, ignore_eos=True) for prompt in prompts]
        for call in calls:
            call.wait_for_tokens(5 + 10 * round_)
        restart_kv_manager(stack)
        answers = [stack.caller.generate(prompt, max_tokens=120, ignore_eos=True) for prompt in prompts]
        assert [answer.token_ids for answer in answers] == expected
        hits += sum(map(cached_tokens, answers))
        assert [call.result().token_ids for call in calls] == expected
    assert hits > 0
    stack.wait_until_idle()


@pytest.mark.slow
def test_what_was_moved_to_the_host_tier_is_adopted_too(
    processes: Processes, model: Path, reference: Reference
) -> None:
    """Few blocks, so that most of what was computed is on the host when the KV manager is killed."""
    settings: dict[str, Any] = {"kv_memory": "384KiB", "host_memory": "2MiB"}
    executor = make_executor(processes, model, **settings)
    stack = Stack(processes, model, executor, kvmanager={"preemption": "swap"})
    stack.start()
    try:
        prompts = [reference.encode(f"a prompt of its own {number} ") * 6 for number in range(8)]
        first = [stack.caller.generate(prompt, max_tokens=30, ignore_eos=True) for prompt in prompts]
        restart_kv_manager(stack)
        again = [stack.caller.generate(prompt, max_tokens=30, ignore_eos=True) for prompt in prompts]
        assert [answer.token_ids for answer in again] == [answer.token_ids for answer in first]
        assert [answer.token_ids for answer in first] == [reference.greedy(prompt, 30) for prompt in prompts]
        assert sum(map(cached_tokens, again)) > 0
        stack.wait_until_idle()
    finally:
        stack.close()
        executor.kill()

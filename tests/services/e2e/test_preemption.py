"""Memory that is too small for all: requests are preempted and computed again, and every answer is right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from octavo.client import generate_request
from octavo.v1 import common_pb2
from tests.services.e2e.processes import Processes
from tests.services.e2e.stack import Stack, make_executor
from tests.services.e2e.tiny_model import Reference

NUM_BLOCKS = 24
"""Of 16 tokens, 8 KiB each: room for three sequences of 128 tokens."""


@pytest.fixture(scope="module")
def tight_stack(processes: Processes, model: Path) -> Iterator[Stack]:
    executor = make_executor(processes, model, kv_memory=f"{8 * NUM_BLOCKS}KiB")
    stack = Stack(processes, model, executor, kvmanager={"max_batched_tokens": 64, "max_sequences": 16})
    stack.start()
    assert stack.memory_map().num_blocks == NUM_BLOCKS
    yield stack
    stack.close()
    stack.executor.kill()


def preemptions(stack: Stack) -> int:
    return stack.memory_map().counters.preemptions


def test_answers_are_right_although_requests_are_preempted(tight_stack: Stack, reference: Reference) -> None:
    """Ten that each end with a third of the pool run in it at the same time."""
    before = preemptions(tight_stack)
    prompts = [reference.encode(f"{i} is the number of the page") for i in range(10)]
    requests = [{"prompt": prompt, "max_tokens": 110, "ignore_eos": True, "logprobs": 0} for prompt in prompts]
    answers = tight_stack.caller.generate_all(requests)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.token_ids == reference.greedy(prompt, 110)
        assert len(answer.sequences[0].logprobs) == 110
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 110
    assert preemptions(tight_stack) > before
    tight_stack.wait_until_idle()


def test_seeded_samples_are_the_same_with_and_without_preemption(tight_stack: Stack) -> None:
    """Groups of parallel samples too, which share the blocks of their prompt."""

    def request(i: int) -> dict[str, Any]:
        prompt = f"a group of {i} " * 3
        return {"prompt": prompt, "n": 3, "temperature": 1, "seed": 10 + i, "max_tokens": 70, "ignore_eos": True}

    alone = [tight_stack.caller.generate(**request(i)) for i in range(6)]
    before = preemptions(tight_stack)
    together = tight_stack.caller.generate_all([request(i) for i in range(6)])
    assert [answer.all_token_ids() for answer in together] == [answer.all_token_ids() for answer in alone]
    assert preemptions(tight_stack) > before
    tight_stack.wait_until_idle()
    assert tight_stack.memory_map().counters.copied_blocks > 0


def test_stop_strings_and_cancellation_amid_preemption(tight_stack: Stack, reference: Reference) -> None:
    """Sequences that end by the gateway's word, or not at all, leave no block behind either."""
    before = preemptions(tight_stack)
    prompts = [reference.encode(f"number {i} of a crowd") for i in range(12)]
    expected = [reference.greedy(prompt, 110) for prompt in prompts]
    stops = [reference.decode(tokens)[60:63] for tokens in expected]
    calls = [
        tight_stack.caller.start(prompt, max_tokens=110, ignore_eos=True, stop=[stop] if i % 3 == 0 else [])
        for i, (prompt, stop) in enumerate(zip(prompts, stops, strict=True))
    ]
    for call in calls[1::3]:
        call.wait_for_tokens(1)
        call.cancel()
    for i, call in enumerate(calls):
        if i % 3 == 0:
            assert call.result().text == reference.decode(expected[i]).partition(stops[i])[0]
        elif i % 3 == 1:
            assert call.error().status == grpc.StatusCode.CANCELLED
        else:
            assert call.result().token_ids == expected[i]
    assert preemptions(tight_stack) > before
    tight_stack.wait_until_idle()


def test_a_request_that_needs_the_whole_pool_gets_it(tight_stack: Stack, reference: Reference) -> None:
    """While others want blocks too."""
    model_len = NUM_BLOCKS * 16
    prompt = [11] * 200
    others = [tight_stack.caller.start(f"beside {i}", max_tokens=100, ignore_eos=True) for i in range(4)]
    answer = tight_stack.caller.generate(prompt, max_tokens=model_len - 200, ignore_eos=True)
    assert answer.token_ids == reference.greedy(prompt, model_len - 200)
    for i, call in enumerate(others):
        assert call.result().token_ids == reference.greedy(reference.encode(f"beside {i}"), 100)
    tight_stack.wait_until_idle()


@pytest.mark.parametrize(
    ("sampling", "field"),
    [({"n": 4, "max_tokens": 100}, "sampling.max_tokens"), ({"n": 13, "max_tokens": 30}, "sampling.max_tokens")],
)
def test_what_never_fits_is_refused_at_once(tight_stack: Stack, sampling: dict[str, int], field: str) -> None:
    error = tight_stack.caller.send(generate_request("too many", sampling=sampling)).error()
    assert (error.status, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
    tight_stack.wait_until_idle()


def test_a_prompt_too_long_for_so_many_samples_is_refused_at_once(tight_stack: Stack) -> None:
    request = generate_request([5] * 360, sampling={"n": 16})
    error = tight_stack.caller.send(request).error()
    assert (error.status, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, "sampling.n")
    tight_stack.wait_until_idle()


def test_without_a_number_of_tokens_the_answer_takes_what_fits(tight_stack: Stack) -> None:
    answers = tight_stack.caller.generate_all([{"prompt": "x", "ignore_eos": True, "n": n} for n in (1, 5)])
    assert [len(token_ids) for token_ids in answers[0].all_token_ids()] == [NUM_BLOCKS * 16 - 2]
    lengths = [len(token_ids) for token_ids in answers[1].all_token_ids()]
    assert lengths == [NUM_BLOCKS // 5 * 16 + 1 - 2] * 5
    tight_stack.wait_until_idle()


def test_evicted_prefixes_are_computed_again(tight_stack: Stack, reference: Reference) -> None:
    """The cache gives way to new requests, and what it lost is right when it is asked for once more."""
    prompts = [reference.encode(f"{i} " + "a long beginning " * 12) for i in range(6)]
    evicted = tight_stack.memory_map().counters.evicted_blocks
    for prompt in (*prompts, *prompts):
        answer = tight_stack.caller.generate(prompt, max_tokens=8, ignore_eos=True)
        assert answer.token_ids == reference.greedy(prompt, 8)
    assert tight_stack.memory_map().counters.evicted_blocks > evicted


def test_requests_submitted_together_share_their_prefix(stack: Stack, reference: Reference) -> None:
    """The blocks of a prompt can be shared while the first request still computes them."""
    before = stack.memory_map().counters
    beginning = "you are the printer of a small town and answer in one line " * 4
    # Without the start token, with which every other prompt begins.
    prompts = [reference.encode(f"{beginning}question {i}")[1:] for i in range(6)]
    shared = (len(reference.encode(beginning)) - 2) // 16 * 16
    with stack.executor.held():
        calls = [stack.caller.start(prompt, max_tokens=10, ignore_eos=True) for prompt in prompts]
        stack.wait_for_requests_in_total(6)
    for prompt, call in zip(prompts, calls, strict=True):
        assert call.result().token_ids == reference.greedy(prompt, 10)
    usages = [call.result().usage for call in calls]
    cached = [usage.cached_tokens for usage in usages if usage is not None]
    assert cached[0] == 0
    assert min(cached[1:]) >= shared
    counters = stack.memory_map().counters
    assert counters.cached_prompt_tokens - before.cached_prompt_tokens == sum(cached)
    assert counters.prompt_tokens - before.prompt_tokens == sum(map(len, prompts))


def test_blocks_add_up(stack: Stack) -> None:
    """The map of single blocks and its totals say the same."""
    call = stack.caller.start("a map", n=4, max_tokens=400, ignore_eos=True, temperature=1)
    call.wait_for_tokens(100)
    with stack.executor.held():
        state = stack.memory_map(include_blocks=True)
        (executor,) = state.executors
        blocks = {
            tier: [block for block in executor.blocks if block.tier == tier]
            for tier in (common_pb2.TIER_DEVICE, common_pb2.TIER_HOST)
        }
        assert state.num_blocks == executor.device.num_blocks
        assert state.referenced_blocks == executor.device.referenced_blocks > 0
        assert state.cached_blocks == executor.device.cached_blocks
        for pool, listed in zip((executor.device, executor.host), blocks.values(), strict=True):
            assert [block.block_id for block in listed] == list(range(pool.num_blocks))
            assert sum(block.reference_count > 0 for block in listed) == pool.referenced_blocks
            assert sum(block.cached and not block.reference_count for block in listed) == pool.cached_blocks
            assert all(block.owner for block in listed if block.reference_count or block.cached)
        device = blocks[common_pb2.TIER_DEVICE]
        assert sum(block.reference_count > 0 for block in device if block.owner == "default") == next(
            tenant.charged_blocks for tenant in state.tenants if tenant.owner == "default"
        )
    call.cancel()

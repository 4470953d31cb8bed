"""Keys and values that are there already, wherever they come from, change no token."""

from __future__ import annotations

import functools

import pytest

from kvmanager.spec import BeamParams
from kvmanager.step import NewSequence
from tests.integration import cases
from tests.integration.cases import Case, first_clear
from tests.integration.models import Model, random_prompt
from tests.integration.stack import FAST_COPIES, Stack

MAX_TOKENS = 16
BLOCK_SIZE = 4


@functools.cache
def greedy(model: Model, index: int) -> Case:
    return cases.greedy(model, model.prompts[index], MAX_TOKENS)


def continuing(model: Model, prompt: list[int], length: int) -> Case:
    """A prompt that begins as another, and goes on for so many tokens in its own way."""

    def make(seed: int) -> Case:
        return cases.greedy(model, prompt + random_prompt(length, seed), MAX_TOKENS)

    return first_clear(make)


# From the host tier


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_a_prefix_that_was_evicted_to_the_host_comes_back(family: Model, block_size: int) -> None:
    stack = Stack(
        family, block_size, num_blocks=96 // block_size, num_host_blocks=1024 // block_size, speeds=FAST_COPIES
    )
    prefix = greedy(family, 7)
    cases.run(stack, [prefix])
    for index in (5, 6):  # these need what the first one left
        cases.run(stack, [greedy(family, index)])
    counters = stack.manager.counters
    assert counters.swapped_out_blocks > 0
    assert counters.cached_prompt_tokens == 0

    cases.run(stack, [continuing(family, prefix.prompt, 5)])
    assert stack.cached_tokens(0) >= len(prefix.prompt)
    assert counters.host_cached_prompt_tokens > 0
    assert counters.swapped_in_blocks > 0


def test_from_both_tiers_for_several_requests_at_once(tiny: Model) -> None:
    """Each round evicts some of what the next one looks for."""
    stack = Stack(tiny, BLOCK_SIZE, num_blocks=40, num_host_blocks=256, speeds=FAST_COPIES)
    for round_of_requests in ((7, 6), (5, 7), (6, 4), (7, 5), (6, 7)):
        cases.run(stack, [greedy(tiny, index) for index in round_of_requests])
    counters = stack.manager.counters
    assert 0 < counters.host_cached_prompt_tokens < counters.cached_prompt_tokens


def test_beams_and_samples_from_the_host(tiny: Model) -> None:
    stack = Stack(tiny, BLOCK_SIZE, num_blocks=52, num_host_blocks=256, speeds=FAST_COPIES)
    prompt = tiny.prompts[7]
    search = cases.beams(tiny, prompt, MAX_TOKENS, BeamParams(4))
    several = first_clear(lambda seed: cases.samples(tiny, prompt, MAX_TOKENS, n=3, seed=seed))
    cases.run(stack, [greedy(tiny, 7)])
    for index in (5, 6, 4, 3, 2):
        cases.run(stack, [greedy(tiny, index)])
    cases.run(stack, [search, several])
    assert stack.manager.counters.host_cached_prompt_tokens > 0


# A part of a block


@pytest.mark.parametrize(("block_size", "num_shared"), [(4, 29), (16, 29), (16, 17), (32, 31), (32, 1)])
def test_the_beginning_of_a_block_is_copied(family: Model, block_size: int, num_shared: int) -> None:
    stack = Stack(family, block_size, speeds=FAST_COPIES)
    first = greedy(family, 6)
    cases.run(stack, [first])
    second = continuing(family, first.prompt[:num_shared], 10)
    assert second.prompt[num_shared] != first.prompt[num_shared]
    cases.run(stack, [second])
    assert stack.cached_tokens(0) == num_shared
    assert stack.manager.counters.copied_blocks == 1
    cases.run(stack, [first])  # the block that was copied from is as it was
    num_full = (len(first.prompt) + MAX_TOKENS - 1) // block_size * block_size
    assert stack.cached_tokens(0) == min(len(first.prompt) - 1, num_full)


def test_a_copied_beginning_is_shared_by_samples_and_beams(tiny: Model) -> None:
    """Whoever writes next to it copies once more."""
    stack = Stack(tiny, block_size=16, speeds=FAST_COPIES)
    first = greedy(tiny, 6)
    cases.run(stack, [first])
    prompt = [*first.prompt[:24], 7]
    assert first.prompt[24] != 7
    search = cases.beams(tiny, prompt, MAX_TOKENS, BeamParams(5))
    several = first_clear(lambda seed: cases.samples(tiny, prompt, MAX_TOKENS, n=4, seed=seed))
    for request in (search, several):
        cases.run(stack, [request])
        assert stack.cached_tokens(0) == 24


def test_while_the_block_copied_from_is_in_use(tiny: Model) -> None:
    """Its owner decodes on."""
    stack = Stack(tiny, block_size=16, speeds=FAST_COPIES)
    first, second = greedy(tiny, 6), continuing(tiny, tiny.prompts[6][:21], 4)
    first.submit(stack, 0)
    for _ in range(4):
        stack.step()
    second.submit(stack, 1)
    stack.run()
    first.check(stack, 0)
    second.check(stack, 1)
    assert stack.cached_tokens(1) == 21


# What others compute at the same time


def test_requests_of_one_step_share_what_the_first_computes_in_it(family: Model) -> None:
    """Rows read blocks that another row fills in the same step."""
    stack = Stack(family, BLOCK_SIZE, max_batched_tokens=256)
    prompt = family.prompts[6]
    alike = [continuing(family, prompt, length) for length in (1, 3, 6)]
    cases.run(stack, [greedy(family, 6), *alike])
    _, first_step = stack.batches[0]
    tables = [new.block_table for new in first_step.new_sequences]
    num_shared = len(prompt) // BLOCK_SIZE
    assert len(tables) == 4
    assert all(table[:num_shared] == tables[0][:num_shared] for table in tables)
    assert first_step.row_num_tokens[0] == len(prompt)
    assert sum(first_step.row_num_tokens[1:]) == sum(len(each.prompt) for each in alike) - 3 * num_shared * BLOCK_SIZE


def test_a_prompt_that_arrives_while_another_like_it_is_computed_in_chunks(tiny: Model) -> None:
    stack = Stack(tiny, BLOCK_SIZE, max_batched_tokens=24, max_sequences=8, speeds=FAST_COPIES)
    first, second = greedy(tiny, 7), continuing(tiny, tiny.prompts[7], 6)
    first.submit(stack, 0)
    stack.step()
    second.submit(stack, 1)
    stack.run()
    first.check(stack, 0)
    second.check(stack, 1)
    assert stack.cached_tokens(1) == len(first.prompt)


def test_identical_sequences_end_up_with_one_copy_of_each_full_block(tiny: Model) -> None:
    """Greedy ones with n = 3 choose the same tokens: what each computes, the others have too."""
    stack = Stack(tiny, BLOCK_SIZE)
    request = greedy(tiny, 4)
    stack.submit(0, request.prompt, MAX_TOKENS, n=3)
    seen = 0
    while not stack.manager.idle:
        stack.step()
        sequences = stack.sequences(0)
        if len(sequences) == 3:
            num_merged = sequences[0].num_registered - 1  # the latest one is merged in the next step
            seen = max(seen, num_merged)
            tables = [[block.block_id for block in each.table[:num_merged]] for each in sequences]
            assert tables[0] == tables[1] == tables[2]
    assert stack.answers[0].token_ids == [request.answer[0].token_ids] * 3
    assert seen > len(request.prompt) // BLOCK_SIZE


def test_a_block_that_another_request_computed_first_is_taken_instead(tiny: Model) -> None:
    """A prompt holds what somebody is about to generate, and is faster."""
    slow, fast = greedy(tiny, 4), None
    output = slow.answer[0].token_ids
    fast = continuing(tiny, slow.prompt + output[:13], 4)
    stack = Stack(tiny, BLOCK_SIZE)
    slow.submit(stack, 0)
    for _ in range(3):
        stack.step()
    fast.submit(stack, 1)
    merged = 0
    while not stack.manager.idle:
        stack.step()
        mine, others = stack.sequences(0), stack.sequences(1)
        if mine and others:
            merged = sum(a is b for a, b in zip(mine[0].table, others[0].table, strict=False))
    slow.check(stack, 0)
    fast.check(stack, 1)
    assert merged == (len(slow.prompt) + 13) // BLOCK_SIZE


@pytest.mark.parametrize("max_batched_tokens", [8, 13, 64])
def test_siblings_that_are_computed_again_take_over_from_one_another(tiny: Model, max_batched_tokens: int) -> None:
    """Their executor is lost; then the first computes what all of them have, however many steps that takes."""
    request = greedy(tiny, 4)
    stack = Stack(tiny, BLOCK_SIZE, max_batched_tokens=max_batched_tokens, max_sequences=8)
    stack.submit(0, request.prompt, MAX_TOKENS, n=3)
    while len(stack.answers[0].token_ids[2]) < 12:
        stack.step()
    num_tokens = len(request.prompt) + min(map(len, stack.answers[0].token_ids))
    stack.lose("executor-0")
    num_batches = len(stack.batches)
    stack.attach(0)
    stack.run()
    assert stack.answers[0].token_ids == [request.answer[0].token_ids] * 3

    batches = [batch for _, batch in stack.batches[num_batches:]]
    announced: list[NewSequence] = [new for batch in batches for new in batch.new_sequences]
    latest = {new.sequence_id: new for new in announced}
    tables = [latest[sequence_id].block_table for sequence_id in sorted(latest)]
    num_shared = (num_tokens - 1) // BLOCK_SIZE
    assert len(tables) == 3
    assert all(table[:num_shared] == tables[0][:num_shared] for table in tables)

"""Where beams keep their keys and values (section 4.4), and that they hold up nobody."""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from kvmanager.spec import BeamParams
from tests.integration import cases
from tests.integration.cases import Case, first_clear
from tests.integration.models import Model, random_prompt
from tests.integration.stack import Stack

MAX_TOKENS = 20


@functools.cache
def search(model: Model, length: int, width: int) -> Case:
    return first_clear(lambda seed: cases.beams(model, random_prompt(length, seed), MAX_TOKENS, BeamParams(width)))


@functools.cache
def plain(model: Model, index: int, max_tokens: int) -> Case:
    return cases.greedy(model, model.prompts[index], max_tokens)


# Blocks


def blocks_needed(beams: list[list[int]], num_computed: int, block_size: int) -> int:
    """Beams share a block as long as they have all its computed tokens, and every token before them, in common."""
    starts = range(0, num_computed, block_size)
    return len({tuple(beam[: min(start + block_size, num_computed)]) for beam in beams for start in starts})


def copies_needed(beams: list[list[int]], num_computed: int, block_size: int) -> int:
    """Beams whose next tokens go into a partly filled block that they share: all but one copy it."""
    if num_computed % block_size == 0:
        return 0
    holders = Counter(tuple(beam[:num_computed]) for beam in beams)
    return sum(count - 1 for count in holders.values())


@pytest.mark.parametrize("length", [16, 17, 19])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_blocks_are_shared_copied_and_freed_as_the_beams_go(tiny: Model, block_size: int, length: int) -> None:
    """After each step the pool holds exactly what the living beams need: dropped ones have freed theirs at once."""
    case = search(tiny, length, 5)
    stack = Stack(tiny, block_size)
    case.submit(stack, 0)
    num_copies, num_dropped, before = 0, 0, set[int]()
    while not stack.manager.idle:
        stack.step()
        beams = stack.sequences(0)
        if len(beams) < 5:
            continue
        tokens = [beam.token_ids for beam in beams]
        num_computed = len(tokens[0]) - 1
        assert stack.memory.pool.num_referenced == blocks_needed(tokens, num_computed, block_size)
        num_copies += copies_needed(tokens, num_computed, block_size)
        assert stack.manager.counters.copied_blocks <= num_copies
        num_dropped += len(before - {beam.sequence_id for beam in beams})
        before = {beam.sequence_id for beam in beams}
    case.check(stack, 0)
    assert num_dropped > 5
    assert stack.manager.counters.copied_blocks == num_copies
    assert (num_copies == 0) == (block_size == 1)


@pytest.mark.parametrize("length", [16, 17])
def test_samples_copy_the_partly_filled_block_alone(tiny: Model, length: int) -> None:
    case = first_clear(lambda seed: cases.samples(tiny, random_prompt(length, seed), MAX_TOKENS, n=6, seed=seed))
    stack = Stack(tiny, block_size=4)
    cases.run(stack, [case])
    assert stack.manager.counters.copied_blocks == (0 if length == 16 else 5)


# Others


def rows_of(stack: Stack, handle: int) -> list[bool]:
    """For each step that was sent while a request's one sequence decoded, whether it had a row."""
    (sequence,) = stack.sequences(handle)
    (first,) = [
        index
        for index, (_, batch) in enumerate(stack.batches)
        if sequence.sequence_id in [new.sequence_id for new in batch.new_sequences]
    ]
    return [sequence.sequence_id in batch.row_sequence_ids for _, batch in stack.batches[first:]]


def test_a_request_beside_beams_gets_a_token_in_every_step(tiny: Model) -> None:
    """Two steps are always under way: the beams have rows in every other one, the plain request in each."""
    beams, other = search(tiny, 17, 6), plain(tiny, 2, 60)
    stack = Stack(tiny, block_size=4)
    other.submit(stack, 0)
    beams.submit(stack, 1)
    steps_with_beams = num_steps = 0
    while stack.answers[1].usage is None:
        num_heard = len(stack.tokens(0))
        stack.step()
        num_steps += 1
        assert len(stack.replica.under_way) == 1, "one more was sent before this result"
        assert len(stack.tokens(0)) == num_heard + 1
        assert all(rows_of(stack, 0))
        _, latest = stack.batches[-1]
        steps_with_beams += len(latest.row_sequence_ids) > 1
    assert MAX_TOKENS - 1 <= steps_with_beams <= num_steps // 2 + 1
    stack.run()
    other.check(stack, 0)
    beams.check(stack, 1)


def test_searches_do_not_wait_for_one_another(tiny: Model) -> None:
    """Three take as many steps as one of them alone."""
    searches = [search(tiny, length, 4) for length in (17, 18, 19)]
    stack = Stack(tiny, block_size=4)
    cases.run(stack, searches)
    assert len(stack.batches) == MAX_TOKENS

"""Measures how fast an executor is, before its first step."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import torch

from executor.memory.block_copier import Pairs
from executor.memory.block_mover import BlockMover
from executor.memory.host_arena import HostArena
from executor.model_runner import ModelRunner, Row
from executor.sequences import SequenceState
from executor.speeds import per_second
from executor.step import SamplingParams, Speeds
from executor.tensor_parallel import Ranks
from executor.timer import Span, Timer

# Prefill is measured, after a first run, with the first of these chunks that takes so long (seconds). That is less than
# the chunks of a busy executor, and so a little too slow: the steps correct it.
_FIRST_RUN = 16
_CHUNKS = (64, 256, 1024)
_LONG_ENOUGH = 0.05
# Copies are measured with so many blocks, fewer where these would take more bytes.
_COPIED_BLOCKS = 8
_COPIED_BYTES = 16 << 20


@torch.inference_mode()
def measure_speeds(
    runner: ModelRunner, host: HostArena, mover: BlockMover, max_tokens: int, timer: Timer, ranks: Ranks
) -> Speeds:
    """Computes some tokens and copies some blocks, in memory that holds nothing yet; leaves those blocks zero.

    Args:
        max_tokens: of one step, and of one sequence.
        ranks: that measure at the same time.
    """
    arena = runner.arena
    count = min(_COPIED_BLOCKS, max(1, _COPIED_BYTES // arena.bytes_per_block))
    swapped = min(count, host.num_blocks, arena.num_blocks)
    copied = min(count, arena.num_blocks // 2)

    prefill, longest = _prefill_speed(runner, min(max_tokens, arena.num_blocks * arena.block_size), timer, ranks)
    used = max(-(-longest // arena.block_size), swapped, 2 * copied)
    # Blocks that were never written would be read faster than others: the system gives them no memory of their own.
    arena.blocks[:used].zero_()
    swaps = [(block, block) for block in range(swapped)]
    speeds = Speeds(
        prefill_tokens_per_s=prefill,
        swap_out_blocks_per_s=_copy_speed(mover.swap_out, swaps, timer),
        swap_in_blocks_per_s=_copy_speed(mover.swap_in, swaps, timer),
        copy_blocks_per_s=_copy_speed(mover.copy, [(block, copied + block) for block in range(copied)], timer),
    )
    arena.blocks[:used].zero_()
    host.data[:swapped].zero_()
    return speeds


def _prefill_speed(runner: ModelRunner, max_tokens: int, timer: Timer, ranks: Ranks) -> tuple[float, int]:
    """Tokens a second, and how many tokens the longest chunk had."""
    _prefill(runner, min(_FIRST_RUN, max_tokens), timer)
    for size in (min(chunk, max_tokens) for chunk in _CHUNKS):
        # All ranks must go on, or stop, alike.
        seconds = ranks.first_number(_prefill(runner, size, timer))
        if seconds >= _LONG_ENOUGH or size == max_tokens:
            break
    return per_second(size, seconds), size


def _prefill(runner: ModelRunner, num_tokens: int, timer: Timer) -> float:
    """Seconds that a prompt of so many tokens takes."""
    row = Row(_sequence(num_tokens, runner.arena.block_size), num_tokens)
    start = timer.mark()
    runner.run([row])
    return timer.seconds(Span(start, timer.mark()))


def _sequence(num_tokens: int, block_size: int) -> SequenceState:
    return SequenceState(
        sequence_id=0,
        token_ids=array("q", bytes(8 * num_tokens)),
        prompt_length=num_tokens,
        num_computed=0,
        block_table=array("q", range(-(-num_tokens // block_size))),
        sampling=SamplingParams(),
        sample_index=0,
    )


def _copy_speed(copy: Callable[[Pairs], Span], pairs: Pairs, timer: Timer) -> float:
    """Blocks a second; 0 where there are none."""
    if not pairs:
        return 0.0
    copy(pairs)
    return per_second(len(pairs), timer.seconds(copy(pairs)))

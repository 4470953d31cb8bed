"""The largest steps that an executor may be given, computed to see what memory they take."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from executor.guides.guide import Guide
from executor.model_runner import ModelRunner, Row
from executor.sampling.samplers import Sampler
from executor.sequences import SequenceState
from executor.step import Penalties, SamplingParams

NUM_BLOCKS = 16
"""What all rows share here: they write over one another, which takes what it takes elsewhere."""

# Every part of sampling that takes memory. Of equally likely tokens nothing but a sort of all of them finds the top.
_FULL_SAMPLING = SamplingParams(
    top_p=0.999, min_p=1e-9, logprobs=20, penalties=Penalties(presence=0.1, frequency=0.1, repetition=1.1)
)
_NUM_CANDIDATES = 16
# Tokens of each of the sequences that sample. So many long ones as fit a step fit no GPU.
_CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class StepSize:
    """What the largest step has.

    Attributes:
        max_tokens: tokens computed.
        max_rows: sequences, all of which sample.
        max_context: tokens of the longest sequence.
    """

    max_tokens: int
    max_rows: int
    max_context: int

    def __str__(self) -> str:
        return f"a step of {self.max_tokens} tokens and {self.max_rows} sequences"


@torch.inference_mode()
def run_worst_steps(runner: ModelRunner, sampler: Sampler | None, size: StepSize) -> None:
    """Computes a chunk at the end of the longest prompt, and as many sequences as there may be, which all sample.

    Args:
        runner: has `NUM_BLOCKS` blocks, or more.
        sampler: None where another rank samples.
    """
    runner.arena.data.zero_()
    chunk = min(size.max_tokens, size.max_context)
    runner.run(_rows([chunk] * min(size.max_rows, -(-size.max_tokens // chunk)), size.max_context, runner))

    context = min(size.max_context, _CONTEXT)
    each = max(1, min(size.max_tokens // size.max_rows, context))
    rows = _rows([each] * size.max_rows, context, runner)
    logits = runner.run(rows)
    if sampler is not None:
        logits.zero_()
        sequences = [row.sequence for row in rows]
        guide = Guide(None, np.full(-(-logits.shape[1] // 32), -1, np.int32))
        for sequence in sequences:
            sequence.guide = guide
        sampler.sample(logits, range(len(rows)), sequences)
        sampler.candidates(logits, range(len(rows)), sequences)


@torch.inference_mode()
def run_largest_decode(runner: ModelRunner, size: StepSize) -> None:
    """Computes one token of as many sequences as there may be."""
    runner.run(_rows([1] * size.max_rows, min(size.max_context, _CONTEXT), runner))


def _rows(counts: Sequence[int], context: int, runner: ModelRunner) -> list[Row]:
    """The last tokens of sequences of so many."""
    token_ids = array("q", bytes(8 * context))
    num_blocks = -(-context // runner.arena.block_size)
    table = array("q", [block % min(NUM_BLOCKS, runner.arena.num_blocks) for block in range(num_blocks)])
    return [
        Row(
            SequenceState(
                sequence_id=index,
                token_ids=token_ids,
                prompt_length=max(1, context // 2),
                num_computed=context - count,
                block_table=table,
                sample_index=0,
                sampling=_FULL_SAMPLING,
                num_candidates=_NUM_CANDIDATES,
                ranked=True,
            ),
            count,
        )
        for index, count in enumerate(counts)
    ]

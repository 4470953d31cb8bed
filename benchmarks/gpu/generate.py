"""Greedy answers of an executor, as the KV manager would have it compute them."""

from __future__ import annotations

from collections.abc import Sequence

from executor.executor import Executor
from executor.step import NewSequence, SamplingParams, StepBatch


def greedy(executor: Executor, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
    """So many tokens after each prompt; all prompts are computed in the first step, and decoded together.

    Raises:
        ValueError: the executor's blocks don't hold so much.
    """
    size = executor.info.block_size
    longest = max(map(len, prompts)) + max_tokens
    per_sequence = -(-longest // size)
    if per_sequence * len(prompts) > executor.info.num_blocks:
        raise ValueError(
            f"{len(prompts)} sequences of {longest} tokens need more than {executor.info.num_blocks} blocks"
        )
    # Neighbours in a sequence are not neighbours in memory.
    tables = [[index * len(prompts) + row for index in range(per_sequence)] for row in range(len(prompts))]
    sampling = SamplingParams(temperature=0)
    epoch = executor.epoch + 1
    batch = StepBatch(
        epoch,
        1,
        new_sequences=[
            NewSequence(row, list(prompt), len(prompt), 0, tables[row], sampling) for row, prompt in enumerate(prompts)
        ],
        row_sequence_ids=list(range(len(prompts))),
        row_num_tokens=[len(prompt) for prompt in prompts],
    )
    answers: list[list[int]] = [[] for _ in prompts]
    for step in range(1, max_tokens + 1):
        result = executor.step(batch)
        for row, token in zip(result.sequence_ids, result.token_ids, strict=True):
            answers[row].append(token)
        rows = list(range(len(prompts)))
        batch = StepBatch(epoch, step + 1, row_sequence_ids=rows, row_num_tokens=[1] * len(rows))
    return answers

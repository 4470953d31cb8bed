"""Computes a step in parts where there is no memory for the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from executor.memory.out_of_memory import MemoryWarnings, is_out_of_memory, release_cached
from executor.model_runner import ModelRunner, Row


class SplitRunner(ModelRunner):
    """A runner whose steps are halved, and halved again, where memory runs out.

    Each token's keys and values go to its own slot, so what was written before memory ran out is written once more. The
    parts keep the order of the rows, because a row may read what an earlier one writes.

    Args:
        runner: computes each part.
        warnings: told of each time.
    """

    def __init__(self, runner: ModelRunner, warnings: MemoryWarnings) -> None:
        self._runner = runner
        self._warnings = warnings
        self.arena = runner.arena
        self.device = runner.device
        self.kernels = runner.kernels

    def run(self, rows: Sequence[Row], *, every_token: bool = False) -> torch.Tensor:
        """As `ModelRunner.run`; an error for want of memory is raised where even a single token has too little."""
        try:
            return self._runner.run(rows, every_token=every_token)
        except Exception as error:
            num_tokens = sum(row.num_tokens for row in rows)
            if num_tokens == 1 or not is_out_of_memory(error):
                raise
            self._warnings.tell(f"a step of {num_tokens} tokens in {len(rows)} rows is computed in halves", error)
        # Out here nothing holds what the failed attempt had made.
        release_cached(self.device)
        first, second = halves(rows)
        logits = self.run(first, every_token=every_token).clone()  # they hold until the next call only
        return torch.cat((logits, self.run(second, every_token=every_token)))

    def phase_seconds(self) -> dict[str, float]:
        return self._runner.phase_seconds()


def halves(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """The first and the second half of the rows' tokens, at least two of them. A row may be cut into two chunks."""
    left = sum(row.num_tokens for row in rows) // 2
    first: list[Row] = []
    second: list[Row] = []
    for row in rows:
        count = min(row.num_tokens, left)
        left -= count
        if count == row.num_tokens:
            first.append(row)
        elif count == 0:
            second.append(row)
        else:
            sequence = row.sequence
            first.append(Row(sequence, count))
            rest = replace(sequence, num_computed=sequence.num_computed + count)
            second.append(Row(rest, row.num_tokens - count))
    return first, second

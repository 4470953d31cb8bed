"""Runs the decoder in native code over the rows of a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from executor.description import DecoderDescription, DynamicNtkScaling, RotaryPositions
from executor.memory.arena import BlockArena
from executor.model_runner import ModelRunner, Row
from executor.native.decoder import NativeDecoder, angle_tables
from executor.native.library import Crew
from executor.native.structures import DecoderStep
from executor.rotary import RotaryEmbedding


class NativeRunner(ModelRunner):
    """A native decoder and the arena its keys and values go to."""

    def __init__(
        self, decoder: NativeDecoder, model: DecoderDescription, arena: BlockArena, crew: Crew, kernels: str
    ) -> None:
        self.arena = arena
        self.device = torch.device("cpu")
        self.kernels = kernels
        self._decoder = decoder
        self._crew = crew
        self._angles = _Angles(model)
        self._logits = torch.empty((0, model.vocab_size))

    def run(self, rows: Sequence[Row], *, every_token: bool = False) -> torch.Tensor:
        # A column each: new tokens, context, and where the block table and the new tokens lie.
        columns = np.array([_columns(row) for row in rows], dtype=np.int64).T.copy()
        ends = np.cumsum(columns[0])
        sampled = np.arange(ends[-1]) if every_token else ends[[row.reaches_last for row in rows]] - 1
        logits = self._room_for(len(sampled))
        cosines, sines = self._angles.tables(rows)
        counts, contexts, tables, tokens = (column.ctypes.data for column in columns)
        step = DecoderStep(
            num_rows=len(rows),
            counts=counts,
            contexts=contexts,
            tables=tables,
            tokens=tokens,
            sampled=sampled.ctypes.data,
            num_sampled=len(sampled),
            cosines=cosines.ctypes.data,
            sines=sines.ctypes.data,
            angles_by_token=self._angles.by_token,
            logits=logits.data_ptr(),
        )
        self._decoder.run(self._crew, step)
        return logits

    def phase_seconds(self) -> dict[str, float]:
        return self._decoder.phase_seconds()

    def _room_for(self, count: int) -> torch.Tensor:
        """Memory for so many rows of logits; no more is taken unless there have never been so many."""
        if count > len(self._logits):
            self._logits = torch.empty((count, self._logits.shape[1]))
        return self._logits[:count]


class _Angles:
    """By how much each token's queries and keys are turned.

    Attributes:
        by_token: the tables have a row for each token of the step, not for each position.
    """

    def __init__(self, model: DecoderDescription) -> None:
        positions = model.positions
        self._rotary = RotaryEmbedding(positions) if isinstance(positions, RotaryPositions) else None
        self.by_token = isinstance(positions, RotaryPositions) and isinstance(positions.scaling, DynamicNtkScaling)
        every = torch.arange(0 if self._rotary is None or self.by_token else model.max_model_len)
        self._by_position = self._of(every, every)

    def tables(self, rows: Sequence[Row]) -> tuple[np.ndarray, ...]:
        """Cosines and sines."""
        if not self.by_token:
            return self._by_position
        positions = np.concatenate([np.arange(row.sequence.num_computed, row.end) for row in rows])
        lengths = np.repeat([row.sequence.prompt_length for row in rows], [row.num_tokens for row in rows])
        return self._of(torch.from_numpy(positions), torch.from_numpy(lengths))

    def _of(self, positions: torch.Tensor, prompt_lengths: torch.Tensor) -> tuple[np.ndarray, ...]:
        if self._rotary is None:
            return np.empty(0, np.float32), np.empty(0, np.float32)
        return angle_tables(*self._rotary.angles(positions, prompt_lengths))


def _columns(row: Row) -> tuple[int, int, int, int]:
    sequence = row.sequence
    table, _ = sequence.block_table.buffer_info()
    tokens, _ = sequence.token_ids.buffer_info()
    return row.num_tokens, row.end, table, tokens + sequence.num_computed * sequence.token_ids.itemsize

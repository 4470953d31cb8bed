"""Runs the decoder that is written in torch, on any device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from executor.arena import BlockArena
from executor.attention import AnyBackend, StepLayout
from executor.decoder import Decoder, DecoderInput
from executor.model_runner import ModelRunner, Row


class TorchRunner(ModelRunner):
    """A decoder, the arena its keys and values go to, and the attention between them."""

    def __init__(self, decoder: Decoder, arena: BlockArena, attention: AnyBackend, device: torch.device) -> None:
        self.decoder = decoder
        self.arena = arena
        self.attention = attention
        self.caches = attention.layer_caches(arena)
        self.device = device
        self.kernels = f"torch, {attention.name} attention"

    def run(self, rows: Sequence[Row], *, every_token: bool = False) -> torch.Tensor:
        tables = [np.array(row.sequence.block_table, dtype=np.int64) for row in rows]
        counts = [row.num_tokens for row in rows]
        ends = [row.end for row in rows]
        layout = StepLayout(counts, ends, tables, self.arena.block_size)
        plan = self.attention.plan(layout, self.device)
        logits: torch.Tensor = self.decoder(self._decoder_input(rows, every_token), self.caches, plan)
        return logits

    def _decoder_input(self, rows: Sequence[Row], every_token: bool) -> DecoderInput:
        counts = [row.num_tokens for row in rows]
        tokens = [np.array(row.sequence.token_ids[row.sequence.num_computed : row.end], np.int64) for row in rows]
        positions = [np.arange(row.sequence.num_computed, row.end, dtype=np.int64) for row in rows]
        last = np.cumsum(counts, dtype=np.int64) - 1
        return DecoderInput(
            token_ids=self._tensor(np.concatenate(tokens)),
            positions=self._tensor(np.concatenate(positions)),
            prompt_lengths=self._tensor(np.repeat([row.sequence.prompt_length for row in rows], counts)),
            sampled=self._tensor(np.arange(sum(counts)) if every_token else last[[row.reaches_last for row in rows]]),
        )

    def _tensor(self, values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device, non_blocking=True)

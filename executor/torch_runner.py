"""Runs the decoder that is written in torch, on any device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from executor.arena import BlockArena
from executor.attention import AnyBackend, StepLayout
from executor.decoder import Decoder
from executor.model_runner import ModelRunner, Row
from executor.step_input import step_input


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
        plan = self.attention.plan(step_layout(rows, self.arena.block_size), self.device)
        step = step_input(rows, self.device, every_token=every_token)
        logits: torch.Tensor = self.decoder(step, self.caches, plan)
        return logits


def step_layout(rows: Sequence[Row], block_size: int) -> StepLayout:
    """Where the rows lie in the blocks."""
    return StepLayout(
        num_tokens=[row.num_tokens for row in rows],
        context_lengths=[row.end for row in rows],
        block_tables=[np.array(row.sequence.block_table, dtype=np.int64) for row in rows],
        block_size=block_size,
    )

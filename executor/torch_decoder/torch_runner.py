"""Runs the decoder that is written in torch, on any device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from executor.attention import AnyBackend, StepLayout
from executor.memory.arena import BlockArena
from executor.model_runner import ModelRunner, Row
from executor.progress import Progress
from executor.torch_decoder.cuda_graphs import GraphCapture
from executor.torch_decoder.decode_graphs import DecodeGraphs
from executor.torch_decoder.decoder import Decoder
from executor.torch_decoder.step_input import step_input


class TorchRunner(ModelRunner):
    """A decoder, the arena its keys and values go to, and the attention between them.

    Args:
        graphs: records decode steps; None where they are not to be recorded.
    """

    def __init__(
        self,
        decoder: Decoder,
        arena: BlockArena,
        attention: AnyBackend,
        device: torch.device,
        graphs: GraphCapture | None = None,
    ) -> None:
        self.decoder = decoder
        self.arena = arena
        self.attention = attention
        self.caches = attention.layer_caches(arena)
        self.device = device
        self._graphs = graphs
        self._decodes: DecodeGraphs | None = None
        self.kernels = f"torch, {attention.name} attention"

    def run(self, rows: Sequence[Row], *, every_token: bool = False) -> torch.Tensor:
        layout = step_layout(rows, self.arena.block_size)
        if self._decodes is not None and self._decodes.takes(rows):
            return self.decoder.logits(self._decodes.run(rows, layout))
        plan = self.attention.plan(layout, self.device)
        step = step_input(rows, self.device, every_token=every_token)
        logits: torch.Tensor = self.decoder(step, self.caches, plan)
        return logits

    def prepare_decodes(self, largest: int, max_context: int, on_progress: Progress) -> None:
        if self._graphs is None:
            return
        decodes = DecodeGraphs(
            self.decoder,
            self.caches,
            self.attention,
            block_size=self.arena.block_size,
            max_context=max_context,
            largest=largest,
            device=self.device,
        )
        decodes.capture(self._graphs, on_progress)
        self._decodes = decodes


def step_layout(rows: Sequence[Row], block_size: int) -> StepLayout:
    """Where the rows lie in the blocks."""
    return StepLayout(
        num_tokens=[row.num_tokens for row in rows],
        context_lengths=[row.end for row in rows],
        block_tables=[np.array(row.sequence.block_table, dtype=np.int64) for row in rows],
        block_size=block_size,
    )

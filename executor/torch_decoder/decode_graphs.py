"""Decode steps that a GPU computes as graphs, one for each of some sizes of batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from executor.attention import AnyBackend, DecodePlan, StepLayout
from executor.model_runner import Row
from executor.progress import Progress
from executor.torch_decoder.cuda_graphs import GraphCapture
from executor.torch_decoder.decoder import Decoder, DecoderInput
from executor.transfers import staged

_SMALL_SIZES = (1, 2, 4)
_LEAST_SHARING = 8
_STEP = 8
# Columns of the input: tokens, positions, prompt lengths; and where pending tokens belong and come from.
_COLUMNS = 5


def batch_sizes(largest: int) -> list[int]:
    """Sizes that there are graphs for, ascending; a smaller batch is filled up to the next one."""
    sizes = {*_SMALL_SIZES, *range(_STEP, largest, _STEP), largest}
    return sorted(size for size in sizes if size <= largest)


def sharing_sizes(largest: int) -> list[int]:
    """Sizes that there are also graphs for whose rows read together what they share; few, for these take memory."""
    sizes = batch_sizes(largest)
    return [size for size in sizes if size >= _LEAST_SHARING and (size == largest or size & (size - 1) == 0)]


class DecodeGraphs:
    """A decoder's layers as graphs, for steps whose rows compute one token each.

    Embedding and layers are in the graph. What follows needs none: it is a few kernels, and without padding its result,
    the logits, takes no more memory than it must.

    Args:
        caches: each layer's keys and values.
        max_context: longest sequence.
        largest: batch.
    """

    def __init__(
        self,
        decoder: Decoder,
        caches: Sequence[Any],
        attention: AnyBackend,
        *,
        block_size: int,
        max_context: int,
        largest: int,
        device: torch.device,
    ) -> None:
        self._decoder = decoder
        self._caches = caches
        self._attention = attention
        self._block_size = block_size
        self._max_context = max_context
        self._largest = largest
        self._device = device
        self._graphs: dict[int, _Graph] = {}
        self._sharing: dict[int, _Graph] = {}
        # What the graphs read and write. Tokens and positions that no row has are 0 until others are written there.
        self._input = torch.zeros(_COLUMNS * largest, dtype=torch.int64, device=device)
        shape = (largest, decoder.description.hidden_size)
        self._hidden = torch.empty(shape, dtype=decoder.embedding.weight.dtype, device=device)

    @torch.inference_mode()
    def capture(self, graphs: GraphCapture, on_progress: Progress) -> None:
        """Records a step of each size, the largest first.

        Raises:
            RuntimeError: see `GraphCapture`.
        """
        sizes = [(size, False) for size in batch_sizes(self._largest)]
        if self._shared_prefix_plan(_LEAST_SHARING) is not None:
            sizes += [(size, True) for size in sharing_sizes(self._largest)]
        for done, (size, shares) in enumerate(sorted(sizes, reverse=True)):
            on_progress("Capturing CUDA graphs", done, len(sizes))
            plan = self._shared_prefix_plan(size) if shares else self._decode_plan(size)
            assert plan is not None, "a backend has plans for all sizes, or none"
            graph = _Graph(size, plan, graphs.capture(self._step(size, plan)))
            (self._sharing if shares else self._graphs)[size] = graph
        on_progress("Capturing CUDA graphs", len(sizes), len(sizes))

    def _decode_plan(self, size: int) -> DecodePlan[Any] | None:
        return self._attention.decode_plan(size, self._max_context, self._block_size, self._device)

    def _shared_prefix_plan(self, size: int) -> DecodePlan[Any] | None:
        return self._attention.shared_prefix_plan(size, self._max_context, self._block_size, self._device)

    def _step(self, size: int, plan: DecodePlan[Any]) -> Callable[[], None]:
        token_ids, positions, prompt_lengths = torch.split(self._input[: 3 * size], size)
        step = DecoderInput(token_ids, positions, prompt_lengths, sampled=token_ids)
        hidden = self._hidden[:size]

        def run() -> None:
            hidden.copy_(self._decoder.layers_output(step, self._caches, plan))

        return run

    def takes(self, rows: Sequence[Row]) -> bool:
        """Whether there is a graph for such a step: each row computes its sequence's last token."""
        return len(rows) <= self._largest and all(row.num_tokens == 1 and row.reaches_last for row in rows)

    def run(self, rows: Sequence[Row], layout: StepLayout) -> torch.Tensor:
        """What the last layer gives for each row, [rows, hidden_size]; it holds until the next call."""
        graph = self._filled_graph(layout)
        self._fill_input(rows, graph.size)
        graph.replay()
        return self._hidden[: len(rows)]

    def _filled_graph(self, layout: StepLayout) -> _Graph:
        """One whose plan has taken the rows."""
        for graphs in (self._sharing, self._graphs):
            fitting = [size for size in graphs if size >= len(layout.num_tokens)]
            if fitting and graphs[min(fitting)].plan.try_fill(layout):
                return graphs[min(fitting)]
        raise AssertionError("a plan without sharing takes all rows")

    def _fill_input(self, rows: Sequence[Row], size: int) -> None:
        """By one copy; tokens that only the device knows come from there."""
        columns = np.zeros((3, size), dtype=np.int64)
        columns[0, : len(rows)] = [row.sequence.token_ids[-1] for row in rows]
        columns[1, : len(rows)] = [row.sequence.num_computed for row in rows]
        columns[2, : len(rows)] = [row.sequence.prompt_length for row in rows]
        pending = [(place, row.sequence.pending) for place, row in enumerate(rows) if row.sequence.pending]
        places = np.array([place for place, _ in pending], dtype=np.int64)
        indices = np.array([token.index for _, token in pending], dtype=np.int64)
        values = staged(torch.from_numpy(np.concatenate([columns.reshape(-1), places, indices])), self._device)
        self._input[: len(values)].copy_(values, non_blocking=True)
        if pending:
            where = self._input[3 * size : len(values)].view(2, -1)
            self._input[:size].index_copy_(0, where[0], pending[0][1].tokens.index_select(0, where[1]))


@dataclass(frozen=True, slots=True)
class _Graph:
    size: int
    plan: DecodePlan[Any]
    replay: Callable[[], None]

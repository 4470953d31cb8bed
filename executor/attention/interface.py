"""What the decoder asks of an attention backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from executor.arena import LayerCache


@dataclass(frozen=True, slots=True)
class StepLayout:
    """Where the rows of a step lie. Row i's new tokens follow those of row i - 1 in the flat token dimension.

    Attributes:
        num_tokens: new tokens of each row, at least 1.
        context_lengths: tokens of each row's sequence up to and including the new ones.
        block_tables: block ids of each row's sequence, at least ceil(context length / block_size) of them, int64.
        block_size: tokens a block.
    """

    num_tokens: Sequence[int]
    context_lengths: Sequence[int]
    block_tables: Sequence[npt.NDArray[np.int64]]
    block_size: int


class AttentionPlan(ABC):
    """One step's attention; every layer uses the same plan. `write` comes before `attend` in each layer."""

    @abstractmethod
    def write(self, cache: LayerCache, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Stores the new tokens' keys and values, [tokens, kv_heads, head_dim], in their slots."""

    @abstractmethod
    def attend(self, cache: LayerCache, queries: torch.Tensor, scale: float) -> torch.Tensor:
        """softmax(scale * queries keys^T) values for each new token over its sequence up to itself.

        Query head h reads key/value head h // (heads / kv_heads). Nothing a slot past a sequence's end holds, NaN
        included, influences the result.

        Args:
            queries: [tokens, heads, head_dim].

        Returns:
            [tokens, heads, head_dim].
        """


class AttentionBackend(ABC):
    """Makes plans. Has no state of its own."""

    name: ClassVar[str]

    @abstractmethod
    def plan(self, layout: StepLayout, device: torch.device) -> AttentionPlan:
        """Everything of a step that doesn't depend on the layer, computed once."""

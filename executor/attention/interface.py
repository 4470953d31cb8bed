"""What the decoder asks of an attention backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from executor.arena import BlockArena, BlockLayout
from executor.description import DecoderDescription

# One layer's keys and values, as a backend wants to be given them.
Cache = TypeVar("Cache")


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


class AttentionPlan(ABC, Generic[Cache]):
    """One step's attention; every layer uses the same plan. `write` comes before `attend` in each layer."""

    @abstractmethod
    def write(self, cache: Cache, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Stores the new tokens' keys and values, [tokens, kv_heads, head_dim], in their slots."""

    @abstractmethod
    def attend(self, cache: Cache, queries: torch.Tensor, scale: float) -> torch.Tensor:
        """softmax(scale * queries keys^T) values for each new token over its sequence up to itself.

        Query head h reads key/value head h // (heads / kv_heads). Nothing a slot past a sequence's end holds, NaN
        included, influences the result.

        Args:
            queries: [tokens, heads, head_dim].

        Returns:
            [tokens, heads, head_dim].
        """


class AttentionBackend(ABC, Generic[Cache]):
    """Says how blocks are laid out, and makes plans. Has no state that a step changes."""

    name: ClassVar[str]

    @abstractmethod
    def block_layout(self, model: DecoderDescription, block_size: int, dtype: torch.dtype) -> BlockLayout:
        """How the arena's memory is arranged for this backend.

        Args:
            block_size: tokens a block.
            dtype: how keys and values are stored.

        Raises:
            SettingsError: the backend can't store them so.
        """

    @abstractmethod
    def layer_caches(self, arena: BlockArena) -> Sequence[Cache]:
        """Each layer's keys and values in an arena that is laid out by this backend."""

    @abstractmethod
    def plan(self, layout: StepLayout, device: torch.device) -> AttentionPlan[Cache]:
        """Everything of a step that doesn't depend on the layer, computed once."""


AnyBackend = AttentionBackend[Any]

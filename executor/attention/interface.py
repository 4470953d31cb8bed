"""What the decoder asks of an attention backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from executor.description import DecoderDescription
from executor.memory.arena import BlockArena, BlockLayout
from executor.rotary import Angles, rotate

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


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """What a score goes through before the softmax.

    Attributes:
        scale: of each query-key product.
        soft_cap: scores become cap * tanh(score / cap), after the scale (Gemma 2, arXiv 2408.00118); 0: none.
        window: a token sees itself and the window - 1 tokens before it; 0: all of them.
        alibi_slopes: of each query head; slope * (key position - query position) is added after the cap (Press et al.,
            arXiv 2108.12409). Empty: none.
    """

    scale: float
    soft_cap: float = 0.0
    window: int = 0
    alibi_slopes: tuple[float, ...] = ()


class AttentionPlan(ABC, Generic[Cache]):
    """One step's attention; every layer uses the same plan. `write` comes before `attend` in each layer."""

    @abstractmethod
    def write(self, cache: Cache, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Stores the new tokens' keys and values, [tokens, kv_heads, head_dim], in their slots."""

    def rotate_and_write(
        self, cache: Cache, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, angles: Angles
    ) -> torch.Tensor:
        """Turns queries, [tokens, heads, head_dim], and keys by the angles; stores the keys and the values.

        Returns:
            The turned queries.
        """
        self.write(cache, rotate(keys, *angles), values)
        return rotate(queries, *angles)

    @abstractmethod
    def attend(self, cache: Cache, queries: torch.Tensor, params: AttentionParams) -> torch.Tensor:
        """softmax(scores(queries keys^T)) values for each new token over its sequence up to itself.

        Query head h reads key/value head h // (heads / kv_heads). Nothing a slot past a sequence's end holds, NaN
        included, influences the result.

        Args:
            queries: [tokens, heads, head_dim].

        Returns:
            [tokens, heads, head_dim].
        """


class DecodePlan(AttentionPlan[Cache]):
    """A plan for decodes whose tensors stay where they are: a CUDA graph may hold what is computed with it."""

    @abstractmethod
    def fill(self, layout: StepLayout) -> None:
        """Takes these rows, of one new token each. What comes after in the device's stream finds them.

        Fewer rows than the plan has leave the last ones empty: their tokens are written nowhere, and what they attend
        to is arbitrary but finite.
        """

    def try_fill(self, layout: StepLayout) -> bool:
        """Takes these rows if it is a good plan for them; else does nothing, and another plan should take them.

        Returns:
            Whether it has taken them.
        """
        self.fill(layout)
        return True


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

    def decode_plan(
        self, num_rows: int, max_context: int, block_size: int, device: torch.device
    ) -> DecodePlan[Cache] | None:
        """A plan for up to so many decodes of sequences of up to `max_context` tokens, empty at first.

        None where the backend has none.
        """
        return None

    def shared_prefix_plan(
        self, num_rows: int, max_context: int, block_size: int, device: torch.device
    ) -> DecodePlan[Cache] | None:
        """Likewise, for sequences that begin with the same blocks: these are read once for all.

        It is a good plan for rows that share much. None where the backend has none.
        """
        return None


AnyBackend = AttentionBackend[Any]

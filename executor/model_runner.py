"""What an executor asks of the model: computing the rows of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from executor.memory.arena import BlockArena
from executor.progress import Progress
from executor.sequences import SequenceState


@dataclass(frozen=True, slots=True)
class Row:
    """The next `num_tokens` tokens of a sequence."""

    sequence: SequenceState
    num_tokens: int

    @property
    def end(self) -> int:
        return self.sequence.num_computed + self.num_tokens

    @property
    def reaches_last(self) -> bool:
        """Whether this computes the last token that the sequence has, so that its logits give the next one."""
        return self.end == len(self.sequence.token_ids)


class ModelRunner(ABC):
    """A model and the arena its keys and values go to.

    Attributes:
        arena: keys and values.
        device: where it computes.
        kernels: which kernels it computes with, for people.
    """

    arena: BlockArena
    device: torch.device
    kernels: str

    @abstractmethod
    def run(self, rows: Sequence[Row], *, every_token: bool = False) -> torch.Tensor:
        """Computes all rows.

        Args:
            every_token: the logits of all tokens are wanted, not only of the last ones.

        Returns:
            The logits of the rows that reach their sequence's last token, in row order, [rows, vocab] in float32; or
            of all rows' tokens one after another. They hold until the next call.
        """

    def prepare_decodes(self, largest: int, max_context: int, on_progress: Progress) -> None:  # noqa: B027
        """Makes steps faster whose rows compute a token each; others, and these without it, take as long as they take.

        Args:
            largest: number of such rows.
            max_context: longest sequence.

        Raises:
            RuntimeError: there is no memory for it.
        """

    def phase_seconds(self) -> dict[str, float]:
        """Wall time of all steps so far by what it was spent on; empty where that isn't known."""
        return {}

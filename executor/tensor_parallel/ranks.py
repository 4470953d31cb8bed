"""What an executor's code asks of the ranks it is one of."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F

from executor.step import StepBatch


class Ranks(ABC):
    """Processes that compute one model together, each with its part of it; this one's view of them.

    All of them run the same steps, so that they meet in the same calls in the same order. The first one leads: it is
    told of the steps and samples their tokens.

    Attributes:
        size: how many they are.
        index: which of them this is.
    """

    size: int
    index: int

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @abstractmethod
    def announce(self, batch: StepBatch) -> None:
        """The first rank runs this batch next, and so must the others. Returns at once."""

    @abstractmethod
    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' values, on each of them; may be in the place of `values`."""

    @abstractmethod
    def embed(self, token_ids: torch.Tensor, table: torch.Tensor, vocabulary: range) -> torch.Tensor:
        """Embeddings of tokens, on each rank.

        Args:
            table: this rank's rows.
            vocabulary: whose they are.
        """

    @abstractmethod
    def gather_logits(self, logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """On the first rank the logits of all tokens, [rows, vocab_size]; on the others something without a meaning.

        Args:
            logits: of the tokens that this rank has, [rows, tokens].
        """

    @abstractmethod
    def first_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """The tokens that the first rank has sampled, on each of them; may be in the place of `tokens`."""

    @abstractmethod
    def first_number(self, number: float) -> float:
        """The first rank's number, on each of them."""

    @abstractmethod
    def smallest(self, number: int) -> int:
        """The smallest of all ranks' numbers, on each of them."""


class Alone(Ranks):
    """There are no others."""

    size = 1
    index = 0

    def announce(self, batch: StepBatch) -> None:
        pass

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        return values

    def embed(self, token_ids: torch.Tensor, table: torch.Tensor, vocabulary: range) -> torch.Tensor:
        return F.embedding(token_ids, table)

    def gather_logits(self, logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
        return logits

    def first_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens

    def first_number(self, number: float) -> float:
        return number

    def smallest(self, number: int) -> int:
        return number


ALONE = Alone()

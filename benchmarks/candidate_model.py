"""Next tokens of beams with the statistics of a language model's, without the model.

How much beam search shares depends on how far back its beams part. That depends on how peaked the next token's
probabilities are, and on how much the beams of one search differ in them. Here the probabilities follow Zipf's law.
Its exponent is drawn, so that the most likely token has the probability that it has in SmolLM2-135M-Instruct. With a
certain probability, `similarity`, all beams of a search have the same one in a step, otherwise each has its own: that
one number was chosen so that beams share as much as SmolLM2's do. `python -m benchmarks.beam_statistics` compares the
two.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache

VOCAB_SIZE = 1024


@dataclass(frozen=True, slots=True)
class BeamProfile:
    """What is known of a model's beams.

    Attributes:
        top_probabilities: of the most likely next token, the medians of sixteen equal parts of all steps.
        similarity: how often the beams of one search have the same probabilities.
    """

    top_probabilities: tuple[float, ...]
    similarity: float


# fmt: off
SHORT_ANSWERS = BeamProfile(
    (0.085, 0.18, 0.25, 0.32, 0.385, 0.45, 0.52, 0.6, 0.68, 0.765, 0.845, 0.91, 0.96, 0.982, 0.996, 0.9995), 0.55
)
"""Measured on 24 instructions of Stanford Alpaca, 100 tokens each, with 2, 4 and 6 beams."""

LONG_ANSWERS = BeamProfile(
    (0.16, 0.29, 0.41, 0.52, 0.65, 0.77, 0.87, 0.92, 0.955, 0.973, 0.984, 0.991, 0.9955, 0.998, 0.9994, 0.9999), 0.9
)
"""Measured on 10 first prompts of ShareGPT, 400 tokens each, with 2, 4 and 6 beams. The longer a small model writes,
the surer it is: it repeats itself."""
# fmt: on


class CandidateModel:
    """Draws candidates for the beams of any number of searches, step by step."""

    def __init__(self, profile: BeamProfile, seed: int) -> None:
        self._profile = profile
        self._rng = random.Random(f"candidates {seed}")
        self._shared: dict[Hashable, list[float] | None] = {}

    def next_step(self) -> None:
        """What beams of one search have in common, they have in one step."""
        self._shared.clear()

    def draw(self, search: Hashable, count: int) -> tuple[list[int], list[float]]:
        """The `count` most likely next tokens of one beam, and their log probabilities."""
        if search not in self._shared:
            self._shared[search] = self._draw() if self._rng.random() < self._profile.similarity else None
        logprobs = self._shared[search] or self._draw()
        return list(range(min(count, VOCAB_SIZE))), logprobs[:count]

    def _draw(self) -> list[float]:
        return self._rng.choice(_distributions(self._profile.top_probabilities))


@cache
def _distributions(top_probabilities: tuple[float, ...]) -> list[list[float]]:
    """Log probabilities by rank, for each probability of the first."""
    distributions = []
    for probability in top_probabilities:
        exponent = _zipf_exponent(probability)
        distributions.append([math.log(probability) - exponent * math.log(rank) for rank in range(1, VOCAB_SIZE + 1)])
    return distributions


def _zipf_exponent(top_probability: float) -> float:
    """The exponent with which the first of `VOCAB_SIZE` ranks has that probability."""
    low, high = 0.0, 20.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        total = sum(rank**-middle for rank in range(1, VOCAB_SIZE + 1))
        low, high = (low, middle) if 1 / total > top_probability else (middle, high)
    return (low + high) / 2

"""Next tokens of beams with the statistics of a language model's, without the model.

How much beam search shares depends on how far back its beams part. That depends on how peaked the next token's
probabilities are, and on how much the beams of one search differ in them. Here the probabilities follow Zipf's law. Its
exponent is drawn, so that the most likely token has the probability that it has in SmolLM2-135M-Instruct. With the
probability `SIMILARITY` all beams of a search have the same one in a step, otherwise each has its own: that one number
was chosen so that beams part as far back as SmolLM2's do. `python -m benchmarks.beam_statistics` compares the two.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable
from functools import cache

VOCAB_SIZE = 1024

# fmt: off
TOP_PROBABILITIES = (
    0.085, 0.18, 0.25, 0.32, 0.385, 0.45, 0.52, 0.6, 0.68, 0.765, 0.845, 0.91, 0.96, 0.982, 0.996, 0.9995,
)
# fmt: on
"""Of the most likely next token, the medians of sixteen equal parts of all steps: beams of widths 2, 4 and 6 on 24
instructions of Stanford Alpaca, 100 tokens each."""

SIMILARITY = 0.65


class CandidateModel:
    """Draws candidates for the beams of any number of searches, step by step."""

    def __init__(self, seed: int, similarity: float = SIMILARITY) -> None:
        self._rng = random.Random(f"candidates {seed}")
        self._similarity = similarity
        self._shared: dict[Hashable, list[float] | None] = {}

    def next_step(self) -> None:
        """What beams of one search have in common, they have in one step."""
        self._shared.clear()

    def draw(self, search: Hashable, count: int) -> tuple[list[int], list[float]]:
        """The `count` most likely next tokens of one beam, and their log probabilities."""
        if search not in self._shared:
            self._shared[search] = self._draw() if self._rng.random() < self._similarity else None
        logprobs = self._shared[search] or self._draw()
        return list(range(min(count, VOCAB_SIZE))), logprobs[:count]

    def _draw(self) -> list[float]:
        return self._rng.choice(_distributions())


@cache
def _distributions() -> list[list[float]]:
    """Log probabilities by rank, for each of `TOP_PROBABILITIES`."""
    distributions = []
    for probability in TOP_PROBABILITIES:
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

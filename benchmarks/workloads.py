"""How long prompts and answers are: workloads like those of the paper's evaluation.

The paper (Kwon et al., SOSP 2023, section 6.1) takes lengths from ShareGPT (161.31 tokens in, 337.99 out) and Alpaca
(19.31 in, 58.45 out). Here they are drawn from the quantiles of published lengths of the same data sets, with the rank
correlation found there, and scaled to the paper's means (by 1.06 to 1.21: other tokenizers, another selection). A
request longer than the 2,048 positions of the paper's models is drawn again, which the scales take into account.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from dataclasses import dataclass
from statistics import NormalDist

MAX_MODEL_LEN = 2048
"""Positions of the paper's models (OPT)."""

# fmt: off
PROBABILITIES = (
    0.0, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 0.99, 0.995,
    1.0,
)
# fmt: on


@dataclass(frozen=True, slots=True)
class RequestLengths:
    """Tokens of one request."""

    prompt: int
    output: int

    @property
    def total(self) -> int:
        return self.prompt + self.output


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution of lengths: its value at each of `PROBABILITIES`, geometric in between, times `scale`."""

    values: tuple[float, ...]
    scale: float

    def at(self, probability: float) -> int:
        """The length that this share of all lengths does not exceed."""
        i = min(bisect_right(PROBABILITIES, probability), len(PROBABILITIES) - 1)
        low, high = PROBABILITIES[i - 1], PROBABILITIES[i]
        weight = (probability - low) / (high - low)
        logarithm = (1 - weight) * math.log(self.values[i - 1]) + weight * math.log(self.values[i])
        return max(1, round(math.exp(logarithm) * self.scale))


@dataclass(frozen=True, slots=True)
class Workload:
    """Lengths of prompts and outputs.

    Attributes:
        rank_correlation: Spearman's, between a prompt's and its output's length.
    """

    name: str
    prompts: Quantiles
    outputs: Quantiles
    rank_correlation: float

    def draw(self, count: int, seed: int, max_model_len: int = MAX_MODEL_LEN) -> list[RequestLengths]:
        """The lengths of so many requests, each of at most `max_model_len` tokens; the seed decides them."""
        rng, normal = random.Random(f"{self.name} {seed}"), NormalDist()
        # Two normal variables with this correlation have that rank correlation.
        correlation = 2 * math.sin(math.pi * self.rank_correlation / 6)
        requests: list[RequestLengths] = []
        while len(requests) < count:
            x = rng.gauss(0, 1)
            y = correlation * x + math.sqrt(1 - correlation**2) * rng.gauss(0, 1)
            request = RequestLengths(self.prompts.at(normal.cdf(x)), self.outputs.at(normal.cdf(y)))
            if request.total <= max_model_len:
                requests.append(request)
        return requests


# Quantiles of the 58,000 ShareGPT V3 lengths in sharegpt_V3_format_lens.csv (vidur_opt_scheduler, MIT licence). Those
# of at most 2,048 tokens have means of 154.2 in and 320.2 out.
SHAREGPT = Workload(
    "sharegpt",
    Quantiles(
        (1, 2, 4, 7, 9, 13, 18, 25, 36, 57, 102, 150, 242, 421, 759, 1055, 1426, 2157, 2863, 3284, 3973),
        scale=1.12,
    ),
    Quantiles(
        (1, 7, 11, 21, 42, 105, 165, 228, 283, 340, 406, 448, 502, 576, 682, 757, 843, 936, 999, 1039, 2384),
        scale=1.068,
    ),
    rank_correlation=0.14,
)

# Quantiles of the first 335 examples of Stanford Alpaca, instruction and input against output, in tokens of GPT-2's
# vocabulary, which is OPT's: means 18.2 in and 48.9 out.
ALPACA = Workload(
    "alpaca",
    Quantiles(
        (5, 6, 6.4, 7, 8, 10, 11, 13, 15, 17, 19, 20, 22, 25, 31, 34, 37, 60, 86, 92, 104),
        scale=1.063,
    ),
    Quantiles(
        (1, 1, 2, 3, 5, 8, 11, 14, 23, 49, 68, 76.5, 85, 96, 111, 129, 150, 200, 240, 274, 387),
        scale=1.207,
    ),
    rank_correlation=-0.32,
)

WORKLOADS = (SHAREGPT, ALPACA)


def random_prompt(length: int, vocab_size: int, rng: random.Random) -> list[int]:
    """A prompt that shares nothing with any other one."""
    return [rng.randrange(vocab_size) for _ in range(length)]

"""The requests that every measured system gets: token ids in, so many tokens out, decided by a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.workloads import ALPACA, SHAREGPT, Workload, random_prompt

NUM_REQUESTS = 64
"""Of the sets that are submitted at once."""

VOCAB_SIZE = 49_152
"""Of SmolLM2."""

LONGEST = 1024
"""Tokens of a prompt, and of an output, in the ShareGPT-like set."""

SETS = ("alpaca", "sharegpt", "shared-prefix", "single", "ttft")

# Means of the paper's data sets (Kwon et al., SOSP 2023, section 6.1), in tokens.
_ALPACA_MEANS = (19, 58)
_SHAREGPT_MEANS = (161, 338)
_SHARED_TOKENS, _OWN_TOKENS, _SHARED_OUTPUT = 512, 32, 64
_SINGLE_PROMPT, _SINGLE_OUTPUT = 32, 256
_TTFT_PROMPT = 512
_TTFT_PROMPTS = 8
# The first ids are special tokens in SmolLM2's vocabulary.
_FIRST_ID = 256


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """One greedy request that ignores the end of the sequence.

    Attributes:
        repeated: whether the same prompt was sent, and answered, before.
    """

    prompt: list[int]
    output_tokens: int
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class RequestSet:
    """Requests to send, all at once or one after the other."""

    name: str
    requests: list[TokenRequest]
    at_once: bool

    @property
    def prompt_tokens(self) -> int:
        return sum(len(request.prompt) for request in self.requests)

    @property
    def output_tokens(self) -> int:
        return sum(request.output_tokens for request in self.requests)


def request_set(name: str, seed: int, count: int | None = None, vocab_size: int = VOCAB_SIZE) -> RequestSet:
    """One of `SETS`. Sets of different seeds share no prefix; their numbers of tokens are the same.

    Args:
        count: of requests, or of different prompts for ttft, which sends each twice; the set's own where None.
        vocab_size: token ids stay below it.

    Raises:
        ValueError: no such set.
    """
    rng = random.Random(f"{name} {seed}")

    def prompt(length: int) -> list[int]:
        ids = random_prompt(length, vocab_size - _FIRST_ID, rng)
        return [_FIRST_ID + token for token in ids]

    if name == "alpaca":
        lengths = _lengths(ALPACA, count or NUM_REQUESTS, _ALPACA_MEANS)
        return RequestSet(name, [TokenRequest(prompt(i), o) for i, o in lengths], at_once=True)
    if name == "sharegpt":
        lengths = _lengths(SHAREGPT, count or NUM_REQUESTS, _SHAREGPT_MEANS)
        return RequestSet(name, [TokenRequest(prompt(i), o) for i, o in lengths], at_once=True)
    if name == "shared-prefix":
        common = prompt(_SHARED_TOKENS)
        own = [common + prompt(_OWN_TOKENS) for _ in range(count or NUM_REQUESTS)]
        return RequestSet(name, [TokenRequest(each, _SHARED_OUTPUT) for each in own], at_once=True)
    if name == "single":
        streams = [TokenRequest(prompt(_SINGLE_PROMPT), _SINGLE_OUTPUT) for _ in range(count or 1)]
        return RequestSet(name, streams, at_once=False)
    if name == "ttft":
        cold = [TokenRequest(prompt(_TTFT_PROMPT), 1) for _ in range(count or _TTFT_PROMPTS)]
        pairs = [each for first in cold for each in (first, replace(first, repeated=True))]
        return RequestSet(name, pairs, at_once=False)
    raise ValueError(f"no set is called {name!r}; there are {', '.join(SETS)}")


def warm_up_set(seed: int, vocab_size: int = VOCAB_SIZE) -> RequestSet:
    """A few short requests, for what a system does only once."""
    rng = random.Random(f"warm up {seed}")
    prompts = [[rng.randrange(vocab_size) for _ in range(24)] for _ in range(8)]
    return RequestSet("warm-up", [TokenRequest(each, 8) for each in prompts], at_once=True)


def _lengths(workload: Workload, count: int, means: tuple[int, int]) -> list[tuple[int, int]]:
    """Lengths of prompts and outputs, the same for every seed of a set: rounds differ in their tokens alone."""
    drawn = workload.draw(count, seed=0)
    prompts = _with_mean([each.prompt for each in drawn], means[0])
    outputs = _with_mean([each.output for each in drawn], means[1])
    return list(zip(prompts, outputs, strict=True))


def _with_mean(lengths: Sequence[int], mean: int) -> list[int]:
    """The lengths times a factor, between 1 and `LONGEST`, so that their mean is exactly this."""
    low, high = 0.0, LONGEST * len(lengths) / sum(lengths) * LONGEST
    for _ in range(100):
        factor = (low + high) / 2
        low, high = (factor, high) if sum(_scaled(lengths, factor)) < mean * len(lengths) else (low, factor)
    scaled = _scaled(lengths, high)
    # What is too much by rounding goes from lengths that can spare it.
    surplus = sum(scaled) - mean * len(scaled)
    for index in sorted(range(len(scaled)), key=scaled.__getitem__, reverse=True)[:surplus]:
        scaled[index] -= 1
    return scaled


def _scaled(lengths: Sequence[int], factor: float) -> list[int]:
    return [min(LONGEST, max(1, round(length * factor))) for length in lengths]

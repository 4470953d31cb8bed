"""Requests whose answers are known from `transformers`, one kind for each decoding method."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from kvmanager.request import FinishReason
from kvmanager.spec import BeamParams
from tests.integration import reference
from tests.integration.models import Model, random_prompt
from tests.integration.reference import CLEAR, CLEAR_DRAW, Output
from tests.integration.stack import Stack

SCORE_TOLERANCE = 1e-4
"""Relative, float32 on both sides. Beams of the demo model differed by 1e-6, samples by 6e-6."""


@dataclass(frozen=True)
class Case:
    """A request and its answer.

    Attributes:
        options: of `Stack.submit`.
        is_clear: the answer does not hang on rounding.
    """

    prompt: list[int]
    max_tokens: int
    answer: list[Output]
    is_clear: bool
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def is_ranked(self) -> bool:
        return "beam" in self.options or "best_of" in self.options

    def submit(self, stack: Stack, handle: int) -> None:
        if not self.is_clear:
            pytest.skip("the reference has a near tie")
        stack.submit(handle, self.prompt, self.max_tokens, **self.options)

    def check(self, stack: Stack, handle: int) -> None:
        heard = stack.answers[handle]
        assert heard.token_ids == [output.token_ids for output in self.answer], self.options
        stops = self.options.get("stop_token_ids", ())
        for output, reason in zip(self.answer, heard.reasons, strict=True):
            assert reason is (FinishReason.STOP if output.token_ids[-1] in stops else FinishReason.LENGTH)
        if self.is_ranked:
            scores = [output.score for output in self.answer]
            assert heard.scores == pytest.approx(scores, rel=SCORE_TOLERANCE), self.options
        else:
            assert heard.scores == [None] * len(self.answer)


def run(stack: Stack, cases: Iterable[Case]) -> None:
    """Submits the cases together, and checks every answer."""
    by_handle = dict(enumerate(cases))
    for handle, case in by_handle.items():
        case.submit(stack, handle)
    stack.run()
    for handle, case in by_handle.items():
        case.check(stack, handle)


def first_clear(make: Callable[[int], Case]) -> Case:
    """The case of the first seed whose answer does not hang on rounding."""
    return next(case for case in map(make, range(100)) if case.is_clear)


def greedy(model: Model, prompt: list[int], max_tokens: int, **options: Any) -> Case:
    """`options` are penalties: each has its counterpart in the reference."""
    output = reference.greedy(model, prompt, max_tokens, **options)
    return Case(prompt, max_tokens, [output], output.margin >= CLEAR, options)


def samples(model: Model, prompt: list[int], max_tokens: int, n: int = 1, seed: int = 0, **options: Any) -> Case:
    """Seeded sampling, of several sequences where n says so."""
    found = _samples(model, prompt, max_tokens, n, seed, **options)
    clear = min(output.margin for output in found) >= CLEAR_DRAW
    return Case(prompt, max_tokens, found, clear, {"n": n, "seed": seed, "temperature": 1.0} | options)


def best_of(
    model: Model, prompt: list[int], max_tokens: int, n: int, best_of: int, seed: int = 0, **options: Any
) -> Case:
    """The n samples with the best mean log probability by `transformers`."""
    found = _samples(model, prompt, max_tokens, best_of, seed, **options)
    clear = min(output.margin for output in found) >= CLEAR_DRAW
    ranked = sorted(found, key=lambda output: -output.score)
    gaps = [better.score - worse.score for better, worse in pairwise(ranked)]
    options = {"n": n, "best_of": best_of, "seed": seed, "temperature": 1.0} | options
    return Case(prompt, max_tokens, ranked[:n], clear and min(gaps[:n]) >= CLEAR, options)


def _samples(model: Model, prompt: list[int], max_tokens: int, count: int, seed: int, **options: Any) -> list[Output]:
    return [
        reference.sample(model, prompt, max_tokens, seed=seed, sample_index=index, **options) for index in range(count)
    ]


def beams(
    model: Model,
    prompt: list[int],
    max_tokens: int,
    params: BeamParams,
    n: int | None = None,
    *,
    min_tokens: int = 0,
    **options: Any,
) -> Case:
    """All beams, or the n best."""
    n = n or params.width
    found = reference.beams(model, prompt, max_tokens, params, n=n, min_new_tokens=min_tokens or None, **options)
    options = {"n": n, "beam": params, "min_tokens": min_tokens} | options
    return Case(prompt, max_tokens, found, found[0].margin >= CLEAR, options)


def reachable_stops(model: Model, prompt: list[int], max_tokens: int, width: int) -> tuple[int, ...]:
    """Tokens that beams come upon, early and late."""
    found = reference.beams(model, prompt, max_tokens, BeamParams(width), n=width)
    return (found[-1].token_ids[max_tokens // 3], found[0].token_ids[-3], found[-1].token_ids[-2])


def clear_samples(model: Model, prompt: list[int], max_tokens: int, n: int) -> Case:
    return first_clear(lambda seed: samples(model, prompt, max_tokens, n, seed))


def clear_search(model: Model, length: int, max_tokens: int, params: BeamParams, n: int | None = None) -> Case:
    return first_clear(lambda seed: beams(model, random_prompt(length, seed), max_tokens, params, n))


@functools.cache
def every_method(model: Model) -> list[Case]:
    """One request of each kind, or two."""
    prompts, max_tokens = model.prompts, 24
    return [
        greedy(model, prompts[6], max_tokens, repetition_penalty=1.3),
        greedy(model, prompts[5], max_tokens),
        clear_samples(model, prompts[3], max_tokens, n=1),
        clear_search(model, 15, max_tokens, BeamParams(4)),
        clear_samples(model, prompts[2], max_tokens, n=4),
        clear_search(model, 10, max_tokens, BeamParams(6, 1.5), n=2),
        first_clear(lambda seed: best_of(model, prompts[1], max_tokens, n=2, best_of=5, seed=seed)),
        greedy(model, prompts[7], max_tokens),
    ]

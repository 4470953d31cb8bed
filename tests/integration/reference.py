"""What `transformers` answers, and by how much: where two answers are nearly as good, rounding may choose."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import transformers

from executor.sampling.random_stream import uniform
from kvmanager.spec import BeamParams
from tests.integration.models import Model

CLEAR = 1e-4
"""Logits, log probabilities and scores that differ by less are nearly the same."""

CLEAR_DRAW = 1e-5
"""The same of a random number's distance from the borders of its token's share of [0, 1)."""


@dataclass(frozen=True)
class Output:
    """One sequence.

    Attributes:
        score: of a beam; of a sample the mean log probability of its tokens.
        margin: by how much each choice in it was the better one.
    """

    token_ids: list[int]
    score: float = 0.0
    margin: float = float("inf")


def _generate(model: Model, prompt: list[int], max_tokens: int, **options: Any) -> Any:
    ids = torch.tensor([prompt])
    return model.transformers.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )


# Greedy


def greedy(model: Model, prompt: list[int], max_tokens: int, **options: Any) -> Output:
    """The most likely token each time.

    Args:
        options: of `generate`.
    """
    result = _generate(model, prompt, max_tokens, **options)
    best = torch.cat(result.scores).topk(2).values
    return Output(result.sequences[0, len(prompt) :].tolist(), margin=float((best[:, 0] - best[:, 1]).min()))


# Samples


@torch.inference_mode()
def sample(
    model: Model,
    prompt: list[int],
    max_tokens: int,
    *,
    seed: int,
    sample_index: int = 0,
    temperature: float = 1.0,
    stop_token_ids: tuple[int, ...] = (),
) -> Output:
    """Inverse-CDF sampling of what `transformers` computes, with the executor's random numbers."""
    output: list[int] = []
    logprobs: list[float] = []
    margin = 1.0
    inputs, cache = torch.tensor([prompt]), None
    while len(output) < max_tokens and not (output and output[-1] in stop_token_ids):
        result = model.transformers(inputs, past_key_values=cache, use_cache=True)
        cache, logits = result.past_key_values, result.logits[0, -1].double()
        shares = torch.softmax(logits / temperature, dim=-1).cumsum(dim=-1)
        number = uniform(seed, sample_index, len(output))
        token = int(torch.searchsorted(shares, torch.tensor(number, dtype=torch.float64), right=True))
        margin = min(margin, float(shares[token]) - number, number - float(shares[token - 1] if token else -1))
        output.append(token)
        logprobs.append(float(torch.log_softmax(logits, dim=-1)[token]))
        inputs = torch.tensor([[token]])
    return Output(output, sum(logprobs) / len(logprobs), margin)


# Beams


class _BeamMargin(transformers.LogitsProcessor):
    """Watches a beam search: how much better the last continuation that counts is than the first that does not."""

    def __init__(self, prompt: list[int], width: int, max_tokens: int, stop_token_ids: tuple[int, ...]) -> None:
        self.margin = float("inf")
        self._width = width
        self._last_length = len(prompt) + max_tokens - 1
        self._stop = list(stop_token_ids)
        self._sums = {tuple(prompt): 0.0}
        self._rows: dict[tuple[int, ...], torch.Tensor] = {}

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        beams = {tuple(ids): row for ids, row in zip(input_ids.tolist(), scores, strict=True)}
        if self._rows:
            self._sums = {beam: self._sums[beam[:-1]] + float(self._rows[beam[:-1]][beam[-1]]) for beam in beams}
        self._rows = {beam: row.clone() for beam, row in beams.items()}
        sums = torch.stack([row.double() + self._sums[beam] for beam, row in beams.items()])
        is_stop = torch.zeros_like(sums, dtype=torch.bool)
        is_stop[:, self._stop] = True
        best = sums.view(-1).topk(self._width + 1)
        # Which ones may finish: it matters if one of the two at the border would.
        if input_ids.shape[1] == self._last_length or is_stop.view(-1)[best.indices[-2:]].any():
            self._note(best.values)
        # Which ones go on.
        if input_ids.shape[1] < self._last_length:
            self._note(sums[~is_stop].topk(self._width + 1).values)
        return scores

    def _note(self, values: torch.Tensor) -> None:
        self.margin = min(self.margin, float(values[-2] - values[-1]))


def beams(
    model: Model,
    prompt: list[int],
    max_tokens: int,
    params: BeamParams,
    stop_token_ids: tuple[int, ...] = (),
    n: int = 1,
    **options: Any,
) -> list[Output]:
    """The n best beams, best first.

    Args:
        options: of `generate`.
    """
    watch = _BeamMargin(prompt, params.width, max_tokens, stop_token_ids)
    result = _generate(
        model,
        prompt,
        max_tokens,
        num_beams=params.width,
        num_return_sequences=params.width,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping.value,
        eos_token_id=list(stop_token_ids) or None,
        logits_processor=transformers.LogitsProcessorList([watch]),
        **options,
    )
    lengths = (result.beam_indices >= 0).sum(dim=1).tolist()
    scores = result.sequences_scores.tolist()
    gaps = [better - worse for better, worse in pairwise(scores)]
    margin = min([watch.margin, *gaps[:n]])
    outputs = result.sequences[:, len(prompt) :].tolist()
    found = [Output(ids[:length], score, margin) for ids, length, score in zip(outputs, lengths, scores, strict=True)]
    return found[:n]

"""From logits to tokens, for all sampling rows of a step at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from executor.sampling.draw import Draw
from executor.sampling.largest import mask_of_largest
from executor.sampling.logits_processors import changes_logits, process_logits
from executor.sampling.logprobs import chosen_logprobs
from executor.sampling.random_stream import uniform
from executor.step import SamplingParams, TokenLogprobs
from executor.transfers import index, to_device, to_host

# How many of the most likely tokens are looked at first for top-p; the whole vocabulary is sorted only for
# rows whose nucleus is larger.
_LIKELY = 1024
# Smaller temperatures would round to 0 in float32; at this one all but the largest logits already vanish.
_COLDEST = 1e-30


class Sampled(NamedTuple):
    """Tokens, and what is reported of them; see `executor.sampling.logprobs.chosen_logprobs`."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]
    scores: list[float]


class Drawn(NamedTuple):
    """Tokens that were drawn, wherever they are.

    Attributes:
        tokens: [draws] in int64, on the device; None where the host has them.
        finish: what the host is told of them; once the device is done with what was in its line when they were drawn.
    """

    tokens: torch.Tensor | None
    finish: Callable[[], Sampled]


def sample(logits: torch.Tensor, draws: Sequence[Draw]) -> Drawn:
    """Chooses a token for each draw. The host does not wait for a GPU.

    Order: bias and penalties; masks (stop tokens before `min_tokens`, what a guide forbids); temperature; top-k; top-p
    of what is left; min-p.
    The result of a draw depends on nothing but its row of logits, its own parameters and its own tokens.

    Args:
        logits: [rows, vocab] in float32. Several draws may share a row.
    """
    rows = index([draw.row for draw in draws], logits)
    random = [i for i, draw in enumerate(draws) if draw.sampling.temperature > 0]
    processed = any(changes_logits(draw) for draw in draws)
    if not random and not processed:
        tokens = logits.argmax(dim=-1)[rows]
    else:
        tokens = _sample_each(logits.index_select(0, rows), draws, random, processed)
    reports = chosen_logprobs(logits, tokens, draws)
    on_host = to_host(tokens)
    return Drawn(None if tokens.is_cpu else tokens, lambda: Sampled(on_host.tolist(), *reports()))


def _sample_each(logits: torch.Tensor, draws: Sequence[Draw], random: list[int], processed: bool) -> torch.Tensor:
    """The general case; `logits` is a copy with a row for each draw, `random` the draws that are not greedy."""
    if processed:
        process_logits(logits, draws)
    tokens = logits.argmax(dim=-1)
    if random:
        which = index(random, logits)
        tokens[which] = _sample_random(logits.index_select(0, which), [draws[i] for i in random])
    return tokens


def _sample_random(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Inverse-CDF sampling: the first token, in order of ids, at which the kept probabilities add up to more than u."""
    # The largest logit becomes 0 first, so that no temperature, however small, makes infinity minus infinity.
    temperatures = _column([max(draw.sampling.temperature, _COLDEST) for draw in draws], logits)
    weights = torch.softmax((logits - logits.amax(dim=-1, keepdim=True)) / temperatures, dim=-1)
    _drop_unlikely(weights, draws)
    cumulative = weights.to(torch.float64).cumsum(dim=-1)
    total = cumulative[:, -1:]
    numbers = [uniform(draw.sampling.seed, draw.sample_index, draw.output_position) for draw in draws]
    targets = _column(numbers, cumulative) * total
    # A product rounded up to the total would point past the last token.
    targets = torch.minimum(targets, torch.nextafter(total, torch.zeros_like(total)))
    tokens = torch.searchsorted(cumulative, targets, right=True).squeeze(-1)
    return tokens.clamp_(max=logits.shape[-1] - 1)


def _drop_unlikely(weights: torch.Tensor, draws: Sequence[Draw]) -> None:
    """Sets the probabilities that top-k, top-p and min-p exclude to 0, in place."""
    cut = [i for i, draw in enumerate(draws) if _cuts(draw.sampling, weights.shape[-1])]
    if cut:
        which = index(cut, weights)
        weights[which] = _truncated(weights.index_select(0, which), [draws[i].sampling for i in cut])
    if any(draw.sampling.min_p > 0 for draw in draws):
        min_p = _column([draw.sampling.min_p for draw in draws], weights)
        weights.masked_fill_(weights < min_p * weights.amax(dim=-1, keepdim=True), 0)


def _cuts(sampling: SamplingParams, vocab_size: int) -> bool:
    return 0 < sampling.top_k < vocab_size or sampling.top_p < 1


def _truncated(weights: torch.Tensor, sampling: Sequence[SamplingParams]) -> torch.Tensor:
    """Top-k, then top-p (nucleus, Holtzman et al., arXiv 1904.09751); of equally likely tokens lower ids are kept."""
    wide = _wide(weights, sampling)
    narrow = sorted({*range(len(sampling))} - {*wide})
    result = torch.empty_like(weights)
    if narrow:
        which, params = index(narrow, weights), [sampling[i] for i in narrow]
        rows = weights.index_select(0, which)
        width = min(max(each.top_k or _LIKELY for each in params), weights.shape[-1])
        result[which] = _keep_first(rows, rows.topk(width, dim=-1).values, params)
    if wide:
        which, params = index(wide, weights), [sampling[i] for i in wide]
        rows = weights.index_select(0, which)
        result[which] = _keep_first(rows, rows.sort(dim=-1, descending=True).values, params)
    return result


def _wide(weights: torch.Tensor, sampling: Sequence[SamplingParams]) -> list[int]:
    """Rows whose nucleus may hold more than the first `_LIKELY` tokens."""
    limitless = [i for i, params in enumerate(sampling) if not params.top_k]
    if not weights.is_cpu or not limitless:
        # To look at the numbers, the host would have to wait for a GPU.
        return limitless
    likely = weights.topk(min(_LIKELY, weights.shape[-1]), dim=-1).values
    mass = likely.to(torch.float64).sum(dim=-1).tolist()
    return [i for i in limitless if mass[i] < sampling[i].top_p]


def _keep_first(weights: torch.Tensor, descending: torch.Tensor, sampling: Sequence[SamplingParams]) -> torch.Tensor:
    """Keeps the tokens that top-k and top-p keep of the descending probabilities."""
    kept = _num_kept(descending, sampling)
    smallest = descending.gather(-1, kept - 1)
    return weights.masked_fill(~mask_of_largest(weights, smallest, kept), 0)


def _num_kept(likely: torch.Tensor, sampling: Sequence[SamplingParams]) -> torch.Tensor:
    """How many tokens top-k and then top-p keep, [rows, 1], at least 1."""
    width = likely.shape[-1]
    top_k = index([[min(params.top_k or width, width)] for params in sampling], likely)
    ranks = torch.arange(width, device=likely.device)
    mass = likely.to(torch.float64).masked_fill(ranks >= top_k, 0)
    before = mass.cumsum(dim=-1) - mass
    unlimited = to_device([[not params.top_k] for params in sampling], likely, torch.bool)
    # Without top-k the whole is 1, whether or not the tail was looked at.
    whole = mass.sum(dim=-1, keepdim=True).masked_fill(unlimited, 1.0)
    top_p = _column([params.top_p for params in sampling], mass)
    within = (before < top_p * whole) & (ranks < top_k)
    return within.sum(dim=-1, keepdim=True).clamp_(min=1)


def _column(numbers: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return to_device(np.asarray(numbers, dtype=np.float64), like)[:, None]

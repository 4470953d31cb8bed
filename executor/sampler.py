"""From logits to tokens, for all sampling rows of a step at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from executor.random_stream import uniform
from executor.step import SamplingParams, TokenLogprobs

# How many of the most likely tokens are looked at first for top-p; the whole vocabulary is sorted only for
# rows whose nucleus is larger.
_LIKELY = 1024
# Smaller temperatures would round to 0 in float32; at this one all but the largest logits already vanish.
_COLDEST = 1e-30


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to choose.

    Attributes:
        row: of the logits.
        sample_index: which of its request's sequences; chooses the random stream with the seed.
        output_position: how many output tokens the sequence has so far.
    """

    row: int
    sampling: SamplingParams
    sample_index: int
    output_position: int


def sample(logits: torch.Tensor, draws: Sequence[Draw]) -> tuple[list[int], list[TokenLogprobs | None]]:
    """Chooses a token for each draw.

    Order: stop tokens masked before `min_tokens`; temperature; top-k; top-p of what is left; min-p. The result of a
    draw depends on nothing but its row of logits and its own parameters.

    Args:
        logits: [rows, vocab] in float32. Several draws may share a row.

    Returns:
        Token ids, and log probabilities: aligned with the draws, or empty if none asks for any.
    """
    rows = torch.tensor([draw.row for draw in draws], dtype=torch.int64, device=logits.device)
    random = [i for i, draw in enumerate(draws) if draw.sampling.temperature > 0]
    if not random and not any(_too_early_to_stop(draw) for draw in draws):
        tokens = logits.argmax(dim=-1)[rows]
    else:
        tokens = _sample_each(logits[rows], draws, random)
    return tokens.tolist(), _logprobs(logits, tokens, draws)


def _sample_each(logits: torch.Tensor, draws: Sequence[Draw], random: list[int]) -> torch.Tensor:
    """The general case; `logits` is a copy with a row for each draw, `random` the draws that are not greedy."""
    vocab_size = logits.shape[-1]
    for i, draw in enumerate(draws):
        if _too_early_to_stop(draw):
            logits[i, [token for token in draw.sampling.stop_token_ids if 0 <= token < vocab_size]] = float("-inf")
    tokens = logits.argmax(dim=-1)
    if random:
        index = torch.tensor(random, dtype=torch.int64, device=logits.device)
        tokens[index] = _sample_random(logits[index], [draws[i] for i in random])
    return tokens


def _too_early_to_stop(draw: Draw) -> bool:
    return draw.output_position < draw.sampling.min_tokens and bool(draw.sampling.stop_token_ids)


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
        index = torch.tensor(cut, dtype=torch.int64, device=weights.device)
        weights[index] = _truncated(weights[index], [draws[i].sampling for i in cut])
    if any(draw.sampling.min_p > 0 for draw in draws):
        min_p = _column([draw.sampling.min_p for draw in draws], weights)
        weights.masked_fill_(weights < min_p * weights.amax(dim=-1, keepdim=True), 0)


def _cuts(sampling: SamplingParams, vocab_size: int) -> bool:
    return 0 < sampling.top_k < vocab_size or sampling.top_p < 1


def _truncated(weights: torch.Tensor, sampling: Sequence[SamplingParams]) -> torch.Tensor:
    """Top-k, then top-p (nucleus, Holtzman et al., arXiv 1904.09751); of equally likely tokens lower ids are kept."""
    width = min(max(params.top_k or _LIKELY for params in sampling), weights.shape[-1])
    likely = weights.topk(width, dim=-1).values
    mass = likely.to(torch.float64).sum(dim=-1).tolist()
    narrow = [i for i, params in enumerate(sampling) if params.top_k or mass[i] >= params.top_p]
    wide = [i for i, params in enumerate(sampling) if not params.top_k and mass[i] < params.top_p]
    result = torch.empty_like(weights)
    if narrow:
        index = torch.tensor(narrow, dtype=torch.int64, device=weights.device)
        result[index] = _keep_first(weights[index], likely[index], [sampling[i] for i in narrow])
    if wide:
        index = torch.tensor(wide, dtype=torch.int64, device=weights.device)
        whole = weights[index].sort(dim=-1, descending=True).values
        result[index] = _keep_first(weights[index], whole, [sampling[i] for i in wide])
    return result


def _keep_first(weights: torch.Tensor, descending: torch.Tensor, sampling: Sequence[SamplingParams]) -> torch.Tensor:
    """Keeps the tokens that top-k and top-p keep of the descending probabilities."""
    kept = _num_kept(descending, sampling)
    smallest = descending.gather(-1, kept - 1)
    above = weights > smallest
    level = weights == smallest
    room = kept - above.sum(dim=-1, keepdim=True)
    return weights.masked_fill(~(above | (level & (level.cumsum(dim=-1) <= room))), 0)


def _num_kept(likely: torch.Tensor, sampling: Sequence[SamplingParams]) -> torch.Tensor:
    """How many tokens top-k and then top-p keep, [rows, 1], at least 1."""
    width = likely.shape[-1]
    top_k = torch.tensor([[params.top_k or width] for params in sampling], device=likely.device).clamp_(max=width)
    ranks = torch.arange(width, device=likely.device)
    mass = likely.to(torch.float64).masked_fill(ranks >= top_k, 0)
    before = mass.cumsum(dim=-1) - mass
    unlimited = torch.tensor([[not params.top_k] for params in sampling], device=likely.device)
    # Without top-k the whole is 1, whether or not the tail was looked at.
    whole = mass.sum(dim=-1, keepdim=True).masked_fill(unlimited, 1.0)
    top_p = _column([params.top_p for params in sampling], mass)
    within = (before < top_p * whole) & (ranks < top_k)
    return within.sum(dim=-1, keepdim=True).clamp_(min=1)


def _logprobs(logits: torch.Tensor, tokens: torch.Tensor, draws: Sequence[Draw]) -> list[TokenLogprobs | None]:
    asking = [i for i, draw in enumerate(draws) if draw.sampling.logprobs is not None]
    if not asking:
        return []
    rows = torch.tensor([draws[i].row for i in asking], dtype=torch.int64, device=logits.device)
    index = torch.tensor(asking, dtype=torch.int64, device=logits.device)
    logprobs = torch.log_softmax(logits[rows], dim=-1)
    chosen = logprobs.gather(-1, tokens[index][:, None]).squeeze(-1).tolist()
    most = min(max(draws[i].sampling.logprobs or 0 for i in asking), logits.shape[-1])
    top = logprobs.topk(most, dim=-1)
    top_logprobs, top_ids = top.values.tolist(), top.indices.tolist()
    result: list[TokenLogprobs | None] = [None] * len(draws)
    for j, i in enumerate(asking):
        count = draws[i].sampling.logprobs or 0
        result[i] = TokenLogprobs(chosen[j], top_ids[j][:count], top_logprobs[j][:count])
    return result


def _column(numbers: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(numbers, dtype=like.dtype, device=like.device)[:, None]

"""Which tokens a sampler may choose, given logits that are right but for a small error.

Two implementations of one model in float32 agree on its logits only up to rounding. So each rule (the largest logit,
top-k, top-p, min-p, the inverse of the cumulative distribution) is checked as an interval: what is surely kept and what
is possibly kept when every logit may be off by `LOGIT_TOLERANCE`. A choice is refused where no such logits give it.
"""

import math
from collections.abc import Sequence

import torch

from octavo.v1 import common_pb2

# Bound on the difference of a logit between two ways to compute SmolLM2 in float32. The largest difference of a log
# probability, which is made of two logits, was 5e-5 in a soak's 44,000.
LOGIT_TOLERANCE = 1e-4


def allowed(
    logits: torch.Tensor,
    token_ids: Sequence[int],
    sampling: common_pb2.SamplingParams,
    uniforms: Sequence[float] | None,
    tolerance: float = LOGIT_TOLERANCE,
) -> list[bool]:
    """For each position whether its token could be chosen there.

    Args:
        logits: [positions, vocab] in float32; minus infinity where a token is forbidden.
        token_ids: What was chosen, one for each position.
        sampling: As the client stated it.
        uniforms: The random number in [0, 1) that decided at each position; None: it is not known.
        tolerance: By how much each logit may be off.
    """
    chosen = torch.tensor(token_ids)[:, None]
    temperature = sampling.temperature if sampling.HasField("temperature") else 1.0
    if temperature == 0:
        return _flags(logits.gather(-1, chosen) >= logits.amax(-1, keepdim=True) - 2 * tolerance)
    scaled = (logits - logits.amax(-1, keepdim=True)) / temperature
    kept = _Kept(scaled, sampling, 2 * tolerance / temperature)
    possible = kept.possibly.gather(-1, chosen)
    if uniforms is not None:
        possible &= kept.contains(chosen, torch.tensor(uniforms, dtype=torch.float64)[:, None])
    return _flags(possible)


class _Kept:
    """The tokens that top-k, then top-p, then min-p leave over.

    Attributes:
        surely: [positions, vocab], kept whatever the error.
        possibly: [positions, vocab], kept for some error.
    """

    def __init__(self, scaled: torch.Tensor, sampling: common_pb2.SamplingParams, gap: float) -> None:
        """`gap` bounds the error of the difference of two scaled logits."""
        self._gap = gap
        # Weights change by at most a factor of exp(gap) against each other, so a share c of the whole moves by no more
        # than c (1 - c) (exp(gap) - 1).
        self._share_error = math.expm1(gap) / 4
        self._scaled = scaled
        self._weights = torch.softmax(scaled.double(), dim=-1)
        self.surely = torch.isfinite(scaled)
        self.possibly = self.surely.clone()
        if 0 < sampling.top_k < scaled.shape[-1]:
            self._apply_top_k(sampling.top_k)
        if sampling.HasField("top_p") and sampling.top_p < 1:
            self._apply_top_p(sampling.top_p)
        if sampling.min_p > 0:
            self._apply_min_p(sampling.min_p)

    def contains(self, chosen: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
        """Whether the cumulative distribution, in order of ids, can pass the random number at the chosen token."""
        surely = torch.where(self.surely, self._weights, 0.0)
        possibly = torch.where(self.possibly, self._weights, 0.0)
        surely_to, possibly_to = surely.cumsum(-1).gather(-1, chosen), possibly.cumsum(-1).gather(-1, chosen)
        surely_before = surely_to - surely.gather(-1, chosen)
        possibly_before = possibly_to - possibly.gather(-1, chosen)
        surely_after = surely.sum(-1, keepdim=True) - surely_to
        possibly_after = possibly.sum(-1, keepdim=True) - possibly_to
        own = possibly_to - possibly_before
        begin = surely_before / (surely_before + own + possibly_after)
        end = (possibly_before + own) / (possibly_before + own + surely_after)
        return (begin - self._share_error <= uniforms) & (uniforms <= end + self._share_error)

    def _apply_top_k(self, top_k: int) -> None:
        largest = self._scaled.topk(top_k + 1).values
        self.possibly &= self._scaled >= largest[:, top_k - 1 : top_k] - self._gap
        self.surely &= self._scaled > largest[:, top_k : top_k + 1] + self._gap

    def _apply_top_p(self, top_p: float) -> None:
        """Keeps a token when the more likely ones weigh less than top_p of the whole together."""
        order = self._scaled.argsort(dim=-1, descending=True)
        ranked = self._scaled.gather(-1, order)
        surely = torch.where(self.surely, self._weights, 0.0)
        possibly = torch.where(self.possibly, self._weights, 0.0)
        least_before = _weight_above(ranked, surely.gather(-1, order), self._scaled + self._gap)
        most_before = _weight_above(ranked, possibly.gather(-1, order), self._scaled - self._gap) - possibly
        least_whole, most_whole = surely.sum(-1, keepdim=True), possibly.sum(-1, keepdim=True)
        self.possibly &= least_before < top_p * most_whole + self._share_error
        self.surely &= most_before < top_p * least_whole - self._share_error

    def _apply_min_p(self, min_p: float) -> None:
        # The most likely token, which is always kept, has a scaled logit of 0.
        self.possibly &= self._scaled >= math.log(min_p) - self._gap
        self.surely &= self._scaled > math.log(min_p) + self._gap


def _weight_above(ranked: torch.Tensor, weights: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """Sum of the weights of all tokens with a scaled logit above each level; `ranked` is descending."""
    total = torch.nn.functional.pad(weights.cumsum(-1), (1, 0))
    count = torch.searchsorted(-ranked, -levels.contiguous())
    return total.gather(-1, count)


def _flags(column: torch.Tensor) -> list[bool]:
    return [bool(flag) for flag in column.squeeze(-1).tolist()]

"""Log probabilities of chosen tokens, of the distribution as the model gives it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from executor.sampling.draw import Draw
from executor.step import TokenLogprobs
from executor.transfers import index, to_host

Reports: TypeAlias = "tuple[list[TokenLogprobs | None], list[float]]"
"""What draws with `logprobs` report, and the scores of ranked ones: each aligned with the draws (None and 0 for the
others), or empty if there are none."""


def chosen_logprobs(logits: torch.Tensor, tokens: torch.Tensor, draws: Sequence[Draw]) -> Callable[[], Reports]:
    """Before penalties, guide, temperature and truncation.

    Args:
        logits: [rows, vocab] in float32.
        tokens: [draws].

    Returns:
        Makes the reports, once the device is done with them.
    """
    asking = [i for i, draw in enumerate(draws) if draw.sampling.logprobs is not None]
    ranked = [i for i, draw in enumerate(draws) if draw.ranked]
    wanted = sorted({*asking, *ranked})
    if not wanted:
        return _nothing
    rows = sorted({draws[i].row for i in wanted})
    row_of = {row: i for i, row in enumerate(rows)}
    logprobs = torch.log_softmax(logits.index_select(0, index(rows, logits)), dim=-1)
    where, draws_wanted = index([row_of[draws[i].row] for i in wanted], logits), index(wanted, logits)
    chosen = to_host(logprobs[where, tokens[draws_wanted]])
    most = min(max(1, *(draws[i].sampling.logprobs or 0 for i in wanted)), logits.shape[-1])
    top = logprobs.topk(most, dim=-1)
    top_logprobs, top_ids = to_host(top.values), to_host(top.indices)

    def reports() -> Reports:
        chosen_of = dict(zip(wanted, chosen.tolist(), strict=True))
        scores = [chosen_of[i] if draw.ranked else 0.0 for i, draw in enumerate(draws)] if ranked else []
        if not asking:
            return [], scores
        all_ids, all_logprobs = top_ids.tolist(), top_logprobs.tolist()
        listed: list[TokenLogprobs | None] = [None] * len(draws)
        for i in asking:
            row, count = row_of[draws[i].row], draws[i].sampling.logprobs or 0
            listed[i] = TokenLogprobs(chosen_of[i], all_ids[row][:count], all_logprobs[row][:count])
        return listed, scores

    return reports


def _nothing() -> Reports:
    return [], []

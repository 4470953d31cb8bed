"""Log probabilities of chosen tokens, of the distribution as the model gives it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.draw import Draw
from executor.step import TokenLogprobs


def chosen_logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, draws: Sequence[Draw]
) -> tuple[list[TokenLogprobs | None], list[float]]:
    """Before penalties, temperature and truncation.

    Args:
        logits: [rows, vocab] in float32.
        tokens: [draws].

    Returns:
        What draws with `logprobs` report, and the scores of ranked ones: each aligned with the draws (None and 0 for
        the others), or empty if there are none.
    """
    asking = [i for i, draw in enumerate(draws) if draw.sampling.logprobs is not None]
    ranked = [i for i, draw in enumerate(draws) if draw.ranked]
    wanted = sorted({*asking, *ranked})
    if not wanted:
        return [], []
    rows = sorted({draws[i].row for i in wanted})
    logprobs = torch.log_softmax(logits[rows], dim=-1)
    row_of = {row: i for i, row in enumerate(rows)}
    where = [row_of[draws[i].row] for i in wanted]
    chosen = dict(zip(wanted, logprobs[where, tokens[wanted]].tolist(), strict=True))
    scores = [chosen[i] if draw.ranked else 0.0 for i, draw in enumerate(draws)] if ranked else []
    if not asking:
        return [], scores
    most = min(max(draws[i].sampling.logprobs or 0 for i in asking), logits.shape[-1])
    top = logprobs.topk(most, dim=-1)
    top_logprobs, top_ids = top.values.tolist(), top.indices.tolist()
    reports: list[TokenLogprobs | None] = [None] * len(draws)
    for i in asking:
        row, count = row_of[draws[i].row], draws[i].sampling.logprobs or 0
        reports[i] = TokenLogprobs(chosen[i], top_ids[row][:count], top_logprobs[row][:count])
    return reports, scores

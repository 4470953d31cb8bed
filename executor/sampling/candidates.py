"""The most likely next tokens of sequences whose tokens are chosen elsewhere (beam search)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from executor.sampling.draw import Draw
from executor.sampling.largest import largest
from executor.sampling.logits_processors import process_logits
from executor.transfers import index, to_host

CandidateLists: TypeAlias = "Callable[[], list[tuple[list[int], list[float]]]]"
"""Makes the lists of tokens and log probabilities, once the device is done with them."""


def most_likely(logits: torch.Tensor, draws: Sequence[Draw], counts: Sequence[int]) -> CandidateLists:
    """Tokens and log probabilities, most likely first, of equal ones lower ids first.

    Bias, penalties and mask act on the log probabilities, which then need not add up to 1: so does beam search in
    `transformers`. Temperature and truncation have no part in it.

    Args:
        logits: [rows, vocab] in float32.
        counts: how many of each draw's tokens; all there are where the vocabulary is smaller.
    """
    rows = index([draw.row for draw in draws], logits)
    logprobs = torch.log_softmax(logits.index_select(0, rows), dim=-1)
    process_logits(logprobs, draws)
    # A model that overflows must not bring down the others' step.
    logprobs.masked_fill_(logprobs.isnan(), -torch.inf)
    values, ids = (to_host(each) for each in largest(logprobs, min(max(counts), logprobs.shape[-1])))

    def lists() -> list[tuple[list[int], list[float]]]:
        columns = zip(ids.tolist(), values.tolist(), counts, strict=True)
        return [(tokens[:count], numbers[:count]) for tokens, numbers, count in columns]

    return lists

"""What choosing a token needs to know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from executor.step import SamplingParams


@dataclass(slots=True)
class Draw:
    """One token to choose, or one list of candidates.

    Attributes:
        row: of the logits.
        sample_index: which of its request's sequences; chooses the random stream with the seed.
        output_position: how many output tokens the sequence has so far.
        token_ids: its prompt and output so far; only penalties look at them.
        ranked: the chosen token's log probability is wanted.
    """

    row: int
    sampling: SamplingParams
    sample_index: int
    output_position: int
    token_ids: Sequence[int] = ()
    ranked: bool = False

"""What choosing a token needs to know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
        allowed: 32 tokens an entry, a bit for each, lowest first: those that a guide allows; None where all may come.
    """

    row: int
    sampling: SamplingParams
    sample_index: int
    output_position: int
    token_ids: Sequence[int] = ()
    ranked: bool = False
    allowed: npt.NDArray[np.int32] | None = None

"""The tokens of a step as the decoder takes them, brought to the device in one copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from executor.model_runner import Row
from executor.torch_decoder.decoder import DecoderInput
from executor.transfers import upload


def step_input(rows: Sequence[Row], device: torch.device, *, every_token: bool = False) -> DecoderInput:
    """All tokens of the rows. Those that only the device knows yet are taken from there; the host waits for nothing.

    Args:
        every_token: the logits of all tokens are wanted, not only of the rows' last ones that end their sequences.
    """
    counts = np.array([row.num_tokens for row in rows], dtype=np.int64)
    last = np.cumsum(counts) - 1
    num_tokens = int(last[-1]) + 1
    pending = [(i, row.sequence.pending) for i, row in enumerate(rows) if row.sequence.pending and row.reaches_last]
    columns: list[npt.NDArray[np.int64]] = [
        np.concatenate([row.sequence.token_ids[row.sequence.num_computed : row.end] for row in rows]),
        np.concatenate([np.arange(row.sequence.num_computed, row.end, dtype=np.int64) for row in rows]),
        np.repeat(np.array([row.sequence.prompt_length for row in rows], dtype=np.int64), counts),
        np.arange(num_tokens) if every_token else last[[row.reaches_last for row in rows]],
        last[[i for i, _ in pending]],
        np.array([token.index for _, token in pending], dtype=np.int64),
    ]
    token_ids, positions, prompt_lengths, sampled, places, indices = upload(columns, device)
    if pending:
        # All that is pending was sampled in the step before.
        token_ids.index_copy_(0, places, pending[0][1].tokens.index_select(0, indices))
    return DecoderInput(token_ids, positions, prompt_lengths, sampled)

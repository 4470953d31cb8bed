"""What a request changes in the logits of single tokens: bias, penalties, stop tokens before `min_tokens`, its guide.

All of it depends on nothing but the sequence's own tokens, so it is the same after preemption. It acts on
log probabilities (of beam search) as it does on logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from executor.sampling.draw import Draw
from executor.step import Penalties
from executor.transfers import index, to_device

Rows = list[tuple[int, Draw, Penalties]]


def changes_logits(draw: Draw) -> bool:
    """Whether the draw asks for any of it."""
    return draw.sampling.penalties is not None or _is_too_early_to_stop(draw) or draw.allowed is not None


def reads_tokens(penalties: Penalties | None) -> bool:
    """Whether what they change depends on the sequence's tokens so far."""
    return penalties is not None and bool(penalties.repetition != 1 or penalties.presence or penalties.frequency)


def process_logits(logits: torch.Tensor, draws: Sequence[Draw]) -> None:
    """Changes the logits in place: bias, repetition penalty, presence and frequency penalties, masks.

    Args:
        logits: [draws, vocab] in float32, row i of draw i.
    """
    rows: Rows = [
        (row, draw, draw.sampling.penalties) for row, draw in enumerate(draws) if draw.sampling.penalties is not None
    ]
    _add_bias(logits, rows)
    _penalise_repetition(logits, rows)
    _penalise_output(logits, rows)
    _mask_stop_tokens(logits, draws)
    _mask_disallowed(logits, draws)


def _is_too_early_to_stop(draw: Draw) -> bool:
    return draw.output_position < draw.sampling.min_tokens and bool(draw.sampling.stop_token_ids)


def _add_bias(logits: torch.Tensor, rows: Rows) -> None:
    parts = _Parts()
    for row, _, penalties in rows:
        within = [(token, bias) for token, bias in penalties.logit_bias.items() if 0 <= token < logits.shape[-1]]
        if within:
            parts.add(row, [token for token, _ in within], [bias for _, bias in within])
    if parts:
        where, bias = parts.tensors(logits)
        logits[where] += bias


def _penalise_repetition(logits: torch.Tensor, rows: Rows) -> None:
    """Keskar et al., "CTRL", arXiv 1909.05858, section 4.1; negative logits multiplied, as everyone does since."""
    parts = _Parts()
    for row, draw, penalties in rows:
        if penalties.repetition != 1 and draw.token_ids:
            parts.add(row, draw.token_ids, np.full(len(draw.token_ids), penalties.repetition))
    if parts:
        # A token may come several times: each time with the same result.
        where, penalty = parts.tensors(logits)
        before = logits[where]
        after = torch.where(before < 0, before * penalty, before / penalty)
        # The smallest penalties would make infinities, whose softmax is no number.
        limits = torch.finfo(logits.dtype)
        logits[where] = after.clamp_(limits.min, limits.max)


def _penalise_output(logits: torch.Tensor, rows: Rows) -> None:
    """logit - count * frequency - (count > 0) * presence, as in OpenAI's API."""
    parts = _Parts()
    for row, draw, penalties in rows:
        if draw.output_position and (penalties.presence or penalties.frequency):
            tokens, counts = np.unique(draw.token_ids[-draw.output_position :], return_counts=True)
            parts.add(row, tokens, penalties.presence + penalties.frequency * counts)
    if parts:
        where, penalty = parts.tensors(logits)
        logits[where] -= penalty


def _mask_stop_tokens(logits: torch.Tensor, draws: Sequence[Draw]) -> None:
    parts = _Parts()
    for row, draw in enumerate(draws):
        if _is_too_early_to_stop(draw):
            tokens = [token for token in draw.sampling.stop_token_ids if 0 <= token < logits.shape[-1]]
            parts.add(row, tokens, np.full(len(tokens), -np.inf))
    if parts:
        where, infinity = parts.tensors(logits)
        logits[where] = infinity


def _mask_disallowed(logits: torch.Tensor, draws: Sequence[Draw]) -> None:
    """A token that is allowed keeps a number, whatever the model made of it: else one that is not could be chosen."""
    guided = [(row, draw.allowed) for row, draw in enumerate(draws) if draw.allowed is not None]
    if not guided:
        return
    packed = to_device(np.stack([allowed for _, allowed in guided]).view(np.uint8), logits, torch.uint8)
    bits = torch.arange(8, dtype=torch.uint8, device=logits.device)
    allowed = ((packed[:, :, None] >> bits) & 1).flatten(1)[:, : logits.shape[-1]] != 0
    where, limits = index([row for row, _ in guided], logits), torch.finfo(logits.dtype)
    kept = logits.index_select(0, where).nan_to_num_(limits.min, limits.max, limits.min)
    logits[where] = torch.where(allowed, kept, -torch.inf)


class _Parts:
    """Tokens of several rows with a number for each, for one indexed operation."""

    def __init__(self) -> None:
        self._rows: list[npt.NDArray[np.int64]] = []
        self._tokens: list[npt.NDArray[np.int64]] = []
        self._numbers: list[npt.NDArray[np.float64]] = []

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, row: int, tokens: npt.ArrayLike, numbers: npt.ArrayLike) -> None:
        self._tokens.append(np.asarray(tokens, dtype=np.int64))
        self._numbers.append(np.asarray(numbers, dtype=np.float64))
        self._rows.append(np.full(len(self._tokens[-1]), row, dtype=np.int64))

    def tensors(self, like: torch.Tensor) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        """The index (rows, tokens), and the numbers."""
        rows, tokens = (index(np.concatenate(column), like) for column in (self._rows, self._tokens))
        return (rows, tokens), to_device(np.concatenate(self._numbers), like)

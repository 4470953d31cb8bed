"""Sequences get their ids here."""

from __future__ import annotations

from array import array
from itertools import count

from kvmanager.request import Request, Sequence


class SequenceFactory:
    """Gives each sequence an id that is never used again, on whatever executor: a late result can't be taken for
    another's."""

    def __init__(self) -> None:
        self._ids = count(1)

    def add(self, request: Request, sample_index: int, token_ids: array[int]) -> Sequence:
        """Adds a sequence to a request. It keeps the token ids, which are its own from here on."""
        sequence = Sequence(next(self._ids), request, sample_index, token_ids)
        request.sequences.append(sequence)
        return sequence

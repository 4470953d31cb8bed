"""Plain tokens on their way to a gateway: those of one step, or those that came together since the last message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from kvmanager.request import Sequence
from octavo.v1 import kvmanager_pb2
from services.rpc.columns import pack_int32, pack_int64


@dataclass(slots=True)
class TokenRows:
    """Columns, one row for each sequence."""

    handles: list[int] = field(default_factory=list)
    sequence_indices: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)

    def add_last(self, sequences: Iterable[Sequence]) -> None:
        """The last token of each."""
        sequences = list(sequences)
        self.handles += [_number(sequence) for sequence in sequences]
        self.sequence_indices += [sequence.sample_index for sequence in sequences]
        self.positions += [sequence.num_output - 1 for sequence in sequences]
        self.counts += [1] * len(sequences)
        self.token_ids += [sequence.token_ids[-1] for sequence in sequences]

    def add(self, sequence: Sequence, first: int, end: int) -> None:
        """Output tokens of one sequence, from `first` until before `end`."""
        self.handles.append(_number(sequence))
        self.sequence_indices.append(sequence.sample_index)
        self.positions.append(first)
        self.counts.append(end - first)
        self.token_ids += sequence.token_ids[sequence.prompt_length + first : sequence.prompt_length + end]

    def write(self, columns: kvmanager_pb2.TokenColumns) -> None:
        """As a message."""
        columns.handles = pack_int64(self.handles)
        columns.positions = pack_int32(self.positions)
        columns.token_ids = pack_int32(self.token_ids)
        if any(self.sequence_indices):
            columns.sequence_indices = pack_int32(self.sequence_indices)
        if len(self.token_ids) > len(self.handles):
            columns.counts = pack_int32(self.counts)


class HeldTokens:
    """Tokens that wait for more of the same sequences. A sequence has all its tokens, so only their start is kept."""

    def __init__(self) -> None:
        self._first: dict[Sequence, int] = {}

    def __len__(self) -> int:
        return len(self._first)

    def keep(self, sequence: Sequence) -> None:
        """The sequence got a token."""
        self._first.setdefault(sequence, sequence.num_output - 1)

    def drop(self, handle: int) -> None:
        """A request is over, and nobody wants its tokens."""
        for sequence in [each for each in self._first if _number(each) == handle]:
            del self._first[sequence]

    def move_to(self, rows: TokenRows, ends: Mapping[tuple[int, int], int]) -> None:
        """Hands over all that is kept.

        Args:
            ends: position from which on the tokens of a sequence are told otherwise, by handle and sequence index.
        """
        for sequence, first in self._first.items():
            end = ends.get((_number(sequence), sequence.sample_index), sequence.num_output)
            if end > first:
                rows.add(sequence, first, end)
        self._first.clear()


def _number(sequence: Sequence) -> int:
    """The gateway's own number for the request."""
    return cast(tuple[int, int], sequence.handle)[1]

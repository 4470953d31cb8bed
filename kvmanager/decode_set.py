"""The sequences that get one token in every step."""

from __future__ import annotations

from collections import Counter

from kvmanager.request import Sequence


class DecodeSet:
    """Sequences in steady decode.

    A sequence in here has a row in each step until it leaves. So it is known beforehand in which step it fills a block
    or reaches its end, and only then it is looked at: the agenda makes a step cost one addition for all others.
    """

    def __init__(self) -> None:
        self.sequences: dict[int, Sequence] = {}
        self.tenants: Counter[str] = Counter()
        """How many of them each tenant has."""
        self._agenda: dict[int, list[Sequence]] = {}

    def __len__(self) -> int:
        return len(self.sequences)

    def join(self, sequence: Sequence, step: int) -> None:
        """Takes a sequence in; it is due in this step."""
        self.sequences[sequence.sequence_id] = sequence
        self.tenants[sequence.request.spec.tenant] += 1
        self.look_at(sequence, step)

    def leave(self, sequence: Sequence) -> None:
        """Takes a sequence out, if it is in."""
        if self.sequences.pop(sequence.sequence_id, None) is not None:
            tenant = sequence.request.spec.tenant
            self.tenants[tenant] -= 1
            if not self.tenants[tenant]:
                del self.tenants[tenant]
            sequence.due_step = 0

    def look_at(self, sequence: Sequence, step: int) -> None:
        """Makes a sequence due in this step."""
        sequence.due_step = step
        self._agenda.setdefault(step, []).append(sequence)

    def due(self, step: int) -> list[Sequence]:
        """Takes the sequences that are due in this step from the agenda."""
        due = []
        for sequence in self._agenda.pop(step, ()):
            # It may have left, for another executor even, and it may stand here twice, if it came back.
            if sequence.due_step == step and sequence.sequence_id in self.sequences:
                sequence.due_step = 0
                due.append(sequence)
        return due

    def advance(self, step: int) -> list[int]:
        """Gives everybody a row in this step. Returns their ids."""
        for sequence in self.sequences.values():
            sequence.num_computed += 1
            sequence.last_step = step
        return list(self.sequences)

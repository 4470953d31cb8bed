"""What each block is said to hold, for whoever leads next."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from executor.step import BlockPlace, StoredBlock


class BlockContents:
    """Keeps records of blocks, unread. A record is valid from the moment when the step that brings it is done.

    What a step that fails, or is never done, may have written is not claimed: its own records are never valid, and
    those of the blocks that it was about to overwrite were removed when it was launched.

    Steps go by any name that none before had.
    """

    def __init__(self) -> None:
        self._valid: dict[BlockPlace, bytes] = {}
        self._pending: dict[Hashable, dict[BlockPlace, bytes]] = {}

    def launched(self, step: Hashable, removed: Sequence[BlockPlace], stored: Sequence[StoredBlock]) -> None:
        """A step starts. What it removes is gone at once, what earlier steps under way store there included."""
        for place in removed:
            self._valid.pop(place, None)
            for pending in self._pending.values():
                pending.pop(place, None)
        if stored:
            self._pending[step] = {(each.tier, each.block_id): each.record for each in stored}

    def done(self, step: Hashable) -> None:
        """The step's result is there, and with it what it stores. Steps are done in their order."""
        if (pending := self._pending.pop(step, None)) is None:
            return
        for place, record in pending.items():
            self._valid.pop(place, None)  # the order is that of storing
            self._valid[place] = record

    def forget_pending(self) -> None:
        """No step under way will be done any more."""
        self._pending.clear()

    def clear(self) -> None:
        """Nothing is known of any block."""
        self._valid.clear()
        self._pending.clear()

    def records(self) -> list[bytes]:
        """Of all blocks that have a valid one, in the order in which they were stored."""
        return list(self._valid.values())

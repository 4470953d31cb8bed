"""State in the process itself: nothing to install, gone with it."""

from __future__ import annotations

from collections import Counter


class EmbeddedStore:
    """Epochs count from 1 in each process. An executor that has seen a higher one says so in `Describe`."""

    def __init__(self) -> None:
        self._epochs: Counter[str] = Counter()

    async def next_epoch(self, model: str) -> int:
        self._epochs[model] += 1
        return self._epochs[model]

    async def register_executor(self, model: str, address: str, incarnation: str) -> None:
        """There is nobody else to tell."""

    async def close(self) -> None:
        pass

"""State in the process itself: nothing to install, gone with it."""

from __future__ import annotations


class EmbeddedStore:
    """Epochs start anew with each process, above what the executor has seen."""

    def __init__(self) -> None:
        self._epochs: dict[str, int] = {}

    async def next_epoch(self, model: str, above: int) -> int:
        self._epochs[model] = max(self._epochs.get(model, 0), above) + 1
        return self._epochs[model]

    async def register_executor(self, model: str, address: str, incarnation: str) -> None:
        """There is nobody else to tell."""

    async def close(self) -> None:
        pass

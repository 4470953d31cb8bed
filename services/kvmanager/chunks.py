"""Parts of prompts that steps under way compute."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvmanager.events import Event

Step = tuple[str, int]
"""An executor and a step of it: each counts its own."""

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class Chunk:
    """A part of a prompt that one step computes, for all sequences of the request together.

    Attributes:
        event: of the first of them.
        until: when the step's result was here; None: it is not, or its request gave its blocks back before.
    """

    event: Event
    num_tokens: int
    until: float | None = None


class ChunksUnderWay(Generic[K]):
    """Which requests have a chunk in which steps whose results are not here."""

    def __init__(self) -> None:
        self._steps: dict[Step, dict[K, Chunk]] = {}
        self._numbers: dict[K, int] = {}

    def __contains__(self, request: K) -> bool:
        """Whether a request has any."""
        return request in self._numbers

    def add(self, request: K, event: Event) -> Chunk | None:
        """Takes note of a prefill event; None where it belongs to a chunk that is known already."""
        step = event.executor, event.step
        chunks = self._steps.get(step)
        if chunks is None:
            chunks = self._steps[step] = {}
        known = chunks.get(request)
        if known is not None:
            known.num_tokens += event.value
            return None
        chunk = chunks[request] = Chunk(event, event.value)
        self._numbers[request] = self._numbers.get(request, 0) + 1
        return chunk

    def of_step(self, executor: str, step: int) -> Iterable[K]:
        """The requests that have a chunk in a step."""
        return self._steps.get((executor, step), ())

    def done(self, event: Event) -> Iterable[tuple[K, Chunk]]:
        """A step's result is here. Returns its chunks."""
        chunks = self._steps.pop((event.executor, event.step), None)
        if chunks is None:
            return ()
        for request, chunk in chunks.items():
            chunk.until = event.time
            self._forget_one(request)
        return chunks.items()

    def _forget_one(self, request: K) -> None:
        number = self._numbers[request] - 1
        if number:
            self._numbers[request] = number
        else:
            del self._numbers[request]

    def forget(self, request: K) -> None:
        """The request gave its blocks back: its steps may never be done, and others may get their numbers."""
        if self._numbers.pop(request, 0):
            for step in [step for step, chunks in self._steps.items() if request in chunks]:
                del self._steps[step][request]
                if not self._steps[step]:
                    del self._steps[step]

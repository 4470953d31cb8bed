"""How long work on a device takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

Mark: TypeAlias = "float | torch.cuda.Event"


@dataclass(frozen=True, slots=True)
class Span:
    """From one mark to another; see `Timer`."""

    start: Mark
    end: Mark


class Timer:
    """Reads the clock where the work is done when a call returns; on a GPU, which runs behind, events mark its stream.

    Args:
        clock: seconds, from any start.
    """

    def __init__(self, device: torch.device, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._on_gpu = device.type == "cuda"

    def mark(self) -> Mark:
        """This point in the work; on a GPU, in its current stream."""
        if not self._on_gpu:
            return self._clock()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch has no types here
        event.record()
        return event

    @staticmethod
    def is_over(span: Span) -> bool:
        """Whether `seconds` answers at once."""
        return not isinstance(span.end, torch.cuda.Event) or bool(span.end.query())  # type: ignore[no-untyped-call]

    @staticmethod
    def seconds(span: Span) -> float:
        """How long the span took. Waits for its end."""
        start, end = span.start, span.end
        if isinstance(start, torch.cuda.Event) or isinstance(end, torch.cuda.Event):
            assert isinstance(start, torch.cuda.Event)
            assert isinstance(end, torch.cuda.Event)
            end.synchronize()
            return float(start.elapsed_time(end)) / 1000
        return end - start

"""What CUDA promises of streams, on a CPU: work of one stream runs in its order, and where a stream waits for an event,
it waits; all else runs in any order. Nothing runs before it is asked to, and then in an order that is chosen.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

# What puts work into a stream. The rest is done at once, as on the host.
_IN_PLACE = {torch.Tensor.copy_, torch.Tensor.index_copy_}
_NEW = {torch.index_select, torch.Tensor.index_select}


class Event:
    """A point in a stream."""

    def __init__(self) -> None:
        self.is_over = False

    def happen(self) -> None:
        self.is_over = True

    def query(self) -> bool:
        return self.is_over


class Stream:
    """Work in its order. Has what is used of `torch.cuda.Stream`."""

    def __init__(self) -> None:
        self._work: deque[Event | Callable[[], Any]] = deque()

    @property
    def length(self) -> int:
        """How much there is to run."""
        return len(self._work)

    def put(self, work: Callable[[], Any]) -> None:
        self._work.append(work)

    def record_event(self) -> Event:
        event = Event()
        self.put(event.happen)
        return event

    def wait_event(self, event: Event) -> None:
        self._work.append(event)

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def advance(self) -> bool:
        """Runs what is next; False where there is nothing, or it must wait."""
        if not self._work:
            return False
        work = self._work[0]
        if isinstance(work, Event):
            if not work.is_over:
                return False
        else:
            work()
        self._work.popleft()
        return True


class Streams(TorchFunctionMode):
    """Within it, and as long as `torch.cuda` is replaced, copies of tensors wait in streams.

    Attributes:
        computing: the stream that is current at first.
        others: those that were made since.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.computing = self._current = Stream()
        self.others: list[Stream] = []
        monkeypatch.setattr(torch.cuda, "Stream", self._make)
        monkeypatch.setattr(torch.cuda, "stream", self._within)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: self._current)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)

    def run(self, rng: random.Random, most: int | None = None) -> None:
        """Runs all there is, or so much of it at most, in one of the orders that are allowed."""
        streams = [self.computing, *self.others]
        eager = rng.random()
        left = sum(stream.length for stream in streams) if most is None else most
        while left > 0 and any(stream.length for stream in streams):
            rng.shuffle(streams)
            assert any(stream.advance() for stream in streams), "each stream waits for the other"
            left -= 1
            # Now and then one runs ahead as far as it can.
            while left > 0 and rng.random() < eager and streams[0].advance():
                left -= 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _IN_PLACE or "out" in kwargs:
            self._current.put(lambda: func(*args, **kwargs))
            return kwargs.get("out", args[0])
        if func in _NEW:
            result = torch.empty_like(func(*args, **kwargs))
            self._current.put(lambda: result.copy_(func(*args, **kwargs)))
            return result
        return func(*args, **kwargs)

    def _make(self, device: torch.device) -> Stream:
        self.others.append(Stream())
        return self.others[-1]

    @contextlib.contextmanager
    def _within(self, stream: Stream) -> Iterator[None]:
        before, self._current = self._current, stream
        yield
        self._current = before

"""Orca as the paper models it (section 6.1): each request's keys and values are one contiguous piece of memory.

The piece is reserved at admission, from a buddy allocator, for as many tokens as the sequence may get:

- Orca (Max): the longest sequence of the model.
- Orca (Pow2): the output's length rounded up to a power of two, so at most twice as long.
- Orca (Oracle): the true length of the output, which no real system knows.

Scheduling is iteration-level and first come, first served: whoever is first in the queue is admitted as soon as there
is a piece for it; each iteration computes one token of every running request, in its first iteration the whole prompt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from benchmarks.baselines.buddy_allocator import BuddyAllocator, Piece
from benchmarks.memory_use import MemoryUse
from benchmarks.workloads import RequestLengths


class Reservation(Enum):
    """What a request reserves memory for."""

    MAX = "max"
    POW2 = "pow2"
    ORACLE = "oracle"

    def slots(self, lengths: RequestLengths, max_model_len: int) -> int:
        """Tokens that memory is reserved for."""
        if self is Reservation.MAX:
            return max_model_len
        if self is Reservation.ORACLE:
            return lengths.total
        return min(lengths.prompt + (1 << (lengths.output - 1).bit_length()), max_model_len)


@dataclass(slots=True)
class _Running:
    lengths: RequestLengths
    num_reserved: int
    piece: Piece
    num_tokens: int = 0

    @property
    def last_length(self) -> int:
        """Tokens that get keys and values: the last one of the output is never fed back."""
        return self.lengths.total - 1

    def compute(self) -> None:
        self.num_tokens = self.num_tokens + 1 if self.num_tokens else self.lengths.prompt


class Orca:
    """All requests are in the queue from the start."""

    def __init__(
        self, reservation: Reservation, num_slots: int, max_model_len: int, requests: Iterable[RequestLengths]
    ) -> None:
        self.waiting = deque(requests)
        self.running: list[_Running] = []
        self._reservation = reservation
        self._max_model_len = max_model_len
        self._allocator = BuddyAllocator(num_slots)

    def iterate(self) -> MemoryUse:
        """Admits, computes a token of every running request, and lets go those that are complete.

        Returns:
            How memory was used at the end of the iteration, before anything was freed.
        """
        self._admit()
        for request in self.running:
            request.compute()
        use = self._memory_use()
        for request in self.running:
            if request.num_tokens == request.last_length:
                self._allocator.free(request.piece)
        self.running = [request for request in self.running if request.num_tokens < request.last_length]
        return use

    def _admit(self) -> None:
        while self.waiting:
            num_slots = self._reservation.slots(self.waiting[0], self._max_model_len)
            piece = self._allocator.allocate(num_slots)
            if piece is None:
                assert self.running, "a request that never fits"
                return
            self.running.append(_Running(self.waiting.popleft(), num_slots, piece))

    def _memory_use(self) -> MemoryUse:
        num_free = self._allocator.num_free
        fragmented = bool(self.waiting) and num_free >= self._reservation.slots(self.waiting[0], self._max_model_len)
        return MemoryUse(
            tokens=sum(request.num_tokens for request in self.running),
            reserved=sum(request.last_length - request.num_tokens for request in self.running),
            internal=sum(request.num_reserved - request.last_length for request in self.running),
            rounding=sum(request.piece.size - request.num_reserved for request in self.running),
            external=num_free if fragmented else 0,
            unused=0 if fragmented else num_free,
        )

"""A buddy allocator over token slots, as in Knowlton, *A fast storage allocator* (CACM 8(10), 1965).

Pieces are powers of two, aligned to their size. A larger piece is split in halves until it fits; a piece that is freed
joins its other half, its buddy, as long as that is free too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """Contiguous slots from `start` on; `size` is a power of two."""

    start: int
    size: int


class BuddyAllocator:
    """Hands out contiguous pieces of a memory of any size; it starts as the largest aligned pieces that fit into it."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.num_free = num_slots
        # Starts of the free pieces of 1, 2, 4 ... slots.
        self._free: list[set[int]] = [set() for _ in range(num_slots.bit_length())]
        self._allocated: dict[int, int] = {}
        start = 0
        for order in reversed(range(num_slots.bit_length())):
            if num_slots & 1 << order:
                self._free[order].add(start)
                start += 1 << order

    def allocate(self, size: int) -> Piece | None:
        """Takes a piece of at least `size` slots, at the lowest address of the smallest size there is.

        Returns:
            None when no piece is large enough, however much is free altogether.
        """
        if size < 1:
            raise ValueError(f"size is {size}; it must be at least 1")
        order = (size - 1).bit_length()
        split = next((larger for larger in range(order, len(self._free)) if self._free[larger]), None)
        if split is None:
            return None
        start = min(self._free[split])
        self._free[split].remove(start)
        while split > order:
            split -= 1
            self._free[split].add(start + (1 << split))
        self._allocated[start] = order
        self.num_free -= 1 << order
        return Piece(start, 1 << order)

    def free(self, piece: Piece) -> None:
        """Gives a piece back.

        Raises:
            ValueError: it is not allocated.
        """
        order = (piece.size - 1).bit_length()
        if self._allocated.get(piece.start) != order or piece.size != 1 << order:
            raise ValueError(f"{piece} is not allocated")
        del self._allocated[piece.start]
        self.num_free += piece.size
        start = piece.start
        # Buddies that were never one piece, at the memory's end, are of different sizes and so never meet here.
        while (buddy := start ^ 1 << order) in self._free[order]:
            self._free[order].remove(buddy)
            start = min(start, buddy)
            order += 1
        self._free[order].add(start)

    def free_pieces(self) -> list[Piece]:
        """All free pieces by address."""
        pieces = [Piece(start, 1 << order) for order, starts in enumerate(self._free) for start in starts]
        return sorted(pieces, key=lambda piece: piece.start)

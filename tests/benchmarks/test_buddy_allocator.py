"""The buddy allocator: pieces never overlap, and everything that is given back grows together again."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from benchmarks.baselines.buddy_allocator import BuddyAllocator, Piece


def test_a_piece_is_the_next_power_of_two() -> None:
    allocator = BuddyAllocator(64)
    assert [allocator.allocate(size) for size in (1, 3, 4, 5, 16)] == [
        Piece(0, 1),
        Piece(4, 4),
        Piece(8, 4),
        Piece(16, 8),
        Piece(32, 16),
    ]
    assert allocator.num_free == 64 - 33


def test_memory_that_is_free_in_small_pieces_holds_no_large_one() -> None:
    allocator = BuddyAllocator(8)
    pieces = [allocator.allocate(1) for _ in range(8)]
    for piece in pieces[::2]:
        assert piece is not None
        allocator.free(piece)
    assert allocator.num_free == 4
    assert allocator.allocate(2) is None
    assert pieces[1] is not None
    allocator.free(pieces[1])
    assert allocator.allocate(2) == Piece(0, 2)


def test_any_size_of_memory_is_used_whole() -> None:
    allocator = BuddyAllocator(13)
    assert allocator.free_pieces() == [Piece(0, 8), Piece(8, 4), Piece(12, 1)]
    assert allocator.allocate(9) is None
    assert all(allocator.allocate(1) for _ in range(13))
    assert allocator.allocate(1) is None


@pytest.mark.parametrize("piece", [Piece(0, 8), Piece(4, 4), Piece(0, 3)])
def test_only_what_is_allocated_can_be_freed(piece: Piece) -> None:
    allocator = BuddyAllocator(16)
    assert allocator.allocate(4) == Piece(0, 4)
    with pytest.raises(ValueError, match="not allocated"):
        allocator.free(piece)
    allocator.free(Piece(0, 4))
    with pytest.raises(ValueError, match="not allocated"):
        allocator.free(Piece(0, 4))


def test_nothing_is_no_size() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        BuddyAllocator(16).allocate(0)


class BuddyMachine(RuleBasedStateMachine):
    """Allocates and frees in any order."""

    @initialize(num_slots=st.integers(1, 200))
    def start(self, num_slots):
        self.allocator = BuddyAllocator(num_slots)
        self.at_first = self.allocator.free_pieces()
        self.pieces: list[Piece] = []

    @rule(size=st.integers(1, 200))
    def allocate(self, size):
        fits = any(piece.size >= size for piece in self.allocator.free_pieces())
        piece = self.allocator.allocate(size)
        assert (piece is not None) == fits
        if piece is not None:
            assert size <= piece.size < 2 * size
            assert piece.start % piece.size == 0
            self.pieces.append(piece)

    @precondition(lambda self: self.pieces)
    @rule(data=st.data())
    def free(self, data):
        piece = self.pieces.pop(data.draw(st.integers(0, len(self.pieces) - 1)))
        self.allocator.free(piece)

    @invariant()
    def pieces_tile_the_memory(self):
        if not hasattr(self, "allocator"):
            return
        end = 0
        for piece in sorted(self.pieces + self.allocator.free_pieces(), key=lambda piece: piece.start):
            assert piece.start == end, "pieces overlap, or leave a hole"
            end = piece.start + piece.size
        assert end == self.allocator.num_slots
        assert self.allocator.num_free == self.allocator.num_slots - sum(piece.size for piece in self.pieces)

    def teardown(self):
        if hasattr(self, "allocator"):
            for piece in self.pieces:
                self.allocator.free(piece)
            assert self.allocator.free_pieces() == self.at_first


TestBuddyAllocator = BuddyMachine.TestCase
TestBuddyAllocator.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

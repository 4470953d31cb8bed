"""Where the memory for keys and values goes, as in the paper's figure 2."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Token slots by what they are used for. They add up to all there are; so do sums over several iterations.

    Attributes:
        tokens: hold keys and values of a token.
        reserved: are kept for tokens that will come.
        internal: are kept for tokens that never come.
        rounding: belong to a piece that is larger than what was asked for, because the allocator has no smaller one.
        external: are free, and as many as the first waiting request needs, but not in one piece.
        unused: are free otherwise: fewer than the first waiting request needs, or nobody waits.
    """

    tokens: int = 0
    reserved: int = 0
    internal: int = 0
    rounding: int = 0
    external: int = 0
    unused: int = 0

    def __add__(self, other: MemoryUse) -> MemoryUse:
        return MemoryUse(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def total(self) -> int:
        return self.tokens + self.reserved + self.internal + self.rounding + self.external + self.unused

    @property
    def waste(self) -> float:
        """The share of what is allocated, or lost between allocations, that holds no token."""
        taken = self.total - self.unused
        return 1.0 - self.tokens / taken if taken else 0.0

    def shares(self) -> dict[str, float]:
        """Each use as a share of all slots, in the categories above."""
        return {name: getattr(self, name) / self.total for name in self.__slots__}

"""Matrices whose weights are small integers with a scale for each group, as llama.cpp stores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

GROUP = 32
"""Neighbouring inputs of an output that share a scale."""


@dataclass(frozen=True, slots=True)
class QuantisedMatrix:
    """A matrix of 4 or 8 bits: a weight is scale * code + minimum, or scale * (code - 128) where there is no minimum.

    Attributes:
        bits: 4 or 8.
        codes: [outputs, inputs], below 2 ** bits.
        scales: [outputs, inputs / 32].
        minimums: the same; None for 8 bits.
    """

    bits: int
    codes: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.float16]
    minimums: npt.NDArray[np.float16] | None

    def rows(self, order: npt.NDArray[np.int64]) -> QuantisedMatrix:
        """The matrix of these rows."""
        minimums = None if self.minimums is None else self.minimums[order]
        return QuantisedMatrix(self.bits, self.codes[order], self.scales[order], minimums)

    def dequantised(self) -> npt.NDArray[np.float32]:
        """[outputs, inputs] weights."""
        scales = _of_each_input(self.scales)
        if self.minimums is None:
            return scales * (self.codes.astype(np.float32) - 128)
        return scales * self.codes + _of_each_input(self.minimums)


def stacked(matrices: Sequence[QuantisedMatrix]) -> QuantisedMatrix:
    """Matrices of the same number of bits, one below the other."""
    minimums = [matrix.minimums for matrix in matrices if matrix.minimums is not None]
    return QuantisedMatrix(
        matrices[0].bits,
        np.concatenate([matrix.codes for matrix in matrices]),
        np.concatenate([matrix.scales for matrix in matrices]),
        np.concatenate(minimums) if minimums else None,
    )


def _of_each_input(values: npt.NDArray[np.float16]) -> npt.NDArray[np.float32]:
    return np.repeat(values.astype(np.float32), GROUP, axis=1)

"""Matrices of 4 or 8 bits for the native kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from executor.native.library import Library
from executor.native.linear import PANEL, Floats, PackedBytes, WeightKind, aligned_bytes, packed_bytes
from executor.weights.quantised import GROUP, QuantisedMatrix, stacked

_BITS = {WeightKind.INT4: 4, WeightKind.INT8: 8}
PADDING = -1


def is_quantisable(inputs: int) -> bool:
    """Whether a matrix with so many inputs can be stored in groups of 32."""
    return inputs % GROUP == 0


def quantise(library: Library, kind: WeightKind, weights: Floats) -> QuantisedMatrix:
    """The nearest codes: INT4 between the smallest and the largest weight of each group, INT8 around zero.

    Args:
        weights: [outputs, inputs].

    Raises:
        ValueError: inputs are not a multiple of 32, or a weight is beyond float16.
    """
    outputs, inputs = weights.shape
    if not is_quantisable(inputs):
        raise ValueError(f"a matrix of {inputs} inputs cannot be stored in groups of {GROUP}")
    contiguous = np.ascontiguousarray(weights, np.float32)
    codes = np.empty((outputs, inputs), np.uint8)
    scales = np.empty((outputs, inputs // GROUP), np.float16)
    minimums = np.empty_like(scales) if kind == WeightKind.INT4 else None
    arguments = (contiguous.ctypes.data, codes.ctypes.data, scales.ctypes.data, _address(minimums))
    if not _function(library, "octavo_quantize", ctypes.c_int32)(kind, outputs, inputs, *arguments):
        raise ValueError("a weight is infinite, not a number, or beyond float16")
    return QuantisedMatrix(_BITS[kind], codes, scales, minimums)


def pack_matrix(
    library: Library,
    kind: WeightKind,
    parts: Sequence[QuantisedMatrix | Floats],
    order: npt.NDArray[np.int64] | None = None,
) -> PackedBytes:
    """Packs a matrix that is made of others, one below the other.

    Parts that have as many bits keep their codes; others are rounded to the nearest.

    Args:
        kind: INT4 or INT8.
        parts: [outputs, inputs] each.
        order: the rows in the order in which they are packed, PADDING for a row of zeros; as they come where None.

    Raises:
        ValueError: as for `quantise`.
    """
    matrix = stacked([_quantised(library, kind, part) for part in parts])
    if order is not None:
        matrix = _reordered(matrix, order)
    outputs, inputs = matrix.codes.shape
    packed = aligned_bytes(packed_bytes(library, kind, outputs, inputs))
    codes, scales = np.ascontiguousarray(matrix.codes), np.ascontiguousarray(matrix.scales)
    minimums = None if matrix.minimums is None else np.ascontiguousarray(matrix.minimums)
    arguments = (codes.ctypes.data, scales.ctypes.data, _address(minimums), packed.ctypes.data)
    _function(library, "octavo_pack_codes", None)(kind, outputs, inputs, *arguments)
    return packed


def interleaved_rows(count: int) -> npt.NDArray[np.int64]:
    """The order of a gated pair of matrices that lie one below the other: a panel of gate and a panel of up in turns.

    Args:
        count: rows of each.
    """
    rows = np.arange(2 * count, dtype=np.int64).reshape(2, count)
    padded = np.pad(rows, ((0, 0), (0, -count % PANEL)), constant_values=PADDING)
    return padded.reshape(2, -1, PANEL).swapaxes(0, 1).reshape(-1)


def _quantised(library: Library, kind: WeightKind, part: QuantisedMatrix | Floats) -> QuantisedMatrix:
    if isinstance(part, QuantisedMatrix):
        if part.bits == _BITS[kind]:
            return part
        part = part.dequantised()
    return quantise(library, kind, part)


def _reordered(matrix: QuantisedMatrix, order: npt.NDArray[np.int64]) -> QuantisedMatrix:
    reordered = matrix.rows(order)
    padding = order == PADDING
    for array in (reordered.scales, reordered.minimums):
        if array is not None:
            array[padding] = 0
    return reordered


def _address(array: npt.NDArray[np.float16] | None) -> int | None:
    return None if array is None else array.ctypes.data


def _function(library: Library, name: str, result: type | None) -> ctypes._NamedFuncPointer:
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    return library.function(name, result, ctypes.c_int32, size, size, pointer, pointer, pointer, pointer)

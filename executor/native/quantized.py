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
QUANTISED = frozenset(_BITS)
_PADDING = -1


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
    *,
    gated: bool = False,
) -> PackedBytes:
    """Packs a matrix that is made of others, one below the other.

    Parts that have as many bits keep their codes; others are rounded to the nearest.

    Args:
        kind: INT4 or INT8.
        parts: [outputs, inputs] each.
        gated: the rows are a gate's, then as many of what is gated; they are packed in turns, as `interleave` does.

    Raises:
        ValueError: as for `quantise`.
    """
    matrix = stacked([_quantised(library, kind, part) for part in parts])
    if gated:
        matrix = _interleaved(matrix)
    outputs, inputs = matrix.codes.shape
    packed = aligned_bytes(packed_bytes(library, kind, outputs, inputs))
    codes, scales = np.ascontiguousarray(matrix.codes), np.ascontiguousarray(matrix.scales)
    minimums = None if matrix.minimums is None else np.ascontiguousarray(matrix.minimums)
    arguments = (codes.ctypes.data, scales.ctypes.data, _address(minimums), packed.ctypes.data)
    _function(library, "octavo_pack_codes", None)(kind, outputs, inputs, *arguments)
    return packed


def _quantised(library: Library, kind: WeightKind, part: QuantisedMatrix | Floats) -> QuantisedMatrix:
    if isinstance(part, QuantisedMatrix):
        if part.bits == _BITS[kind]:
            return part
        part = part.dequantised()
    return quantise(library, kind, part)


def _interleaved(matrix: QuantisedMatrix) -> QuantisedMatrix:
    """A panel of the upper half of the rows and one of the lower half in turns, each half padded to whole panels."""
    rows = np.arange(len(matrix.codes), dtype=np.int64).reshape(2, -1)
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % PANEL)), constant_values=_PADDING)
    order = padded.reshape(2, -1, PANEL).swapaxes(0, 1).reshape(-1)
    interleaved = matrix.rows(order)
    for array in (interleaved.scales, interleaved.minimums):
        if array is not None:
            array[order == _PADDING] = 0
    return interleaved


def _address(array: npt.NDArray[np.float16] | None) -> int | None:
    return None if array is None else array.ctypes.data


def _function(library: Library, name: str, result: type | None) -> ctypes._NamedFuncPointer:
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    return library.function(name, result, ctypes.c_int32, size, size, pointer, pointer, pointer, pointer)

"""Blocks of GGUF's quantised tensors, taken apart without computing a weight.

The formats are those of ggml (ggml-common.h). A block is 32 weights of a row; its first 2 bytes are the scale, a
float16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from executor.weights.quantised import GROUP, QuantisedMatrix

Bytes = npt.NDArray[np.uint8]


def quantised_matrix(data: Bytes, kind: gguf.GGMLQuantizationType) -> QuantisedMatrix | None:
    """A tensor's codes and scales; None for formats that are not one scale (and minimum) for each 32 weights.

    Args:
        data: [rows, bytes of a row], as in the file.
    """
    take_apart = _FORMATS.get(kind)
    if take_apart is None:
        return None
    block_size, type_size = gguf.GGML_QUANT_SIZES[kind]
    assert block_size == GROUP
    return take_apart(data.reshape(len(data), -1, type_size))


def _q4_0(blocks: Bytes) -> QuantisedMatrix:
    """Scale, then 16 bytes: scale * (code - 8)."""
    scales = _halves(blocks, 0)
    return QuantisedMatrix(4, _nibbles(blocks[..., 2:]), scales, scales * np.float16(-8))


def _q4_1(blocks: Bytes) -> QuantisedMatrix:
    """Scale, minimum, then 16 bytes: scale * code + minimum."""
    return QuantisedMatrix(4, _nibbles(blocks[..., 4:]), _halves(blocks, 0), _halves(blocks, 2))


def _q8_0(blocks: Bytes) -> QuantisedMatrix:
    """Scale, then 32 signed codes: scale * code."""
    codes = (blocks[..., 2:] ^ np.uint8(0x80)).reshape(len(blocks), -1)
    return QuantisedMatrix(8, codes, _halves(blocks, 0), None)


_FORMATS: dict[Any, Callable[[Bytes], QuantisedMatrix]] = {
    gguf.GGMLQuantizationType.Q4_0: _q4_0,
    gguf.GGMLQuantizationType.Q4_1: _q4_1,
    gguf.GGMLQuantizationType.Q8_0: _q8_0,
}


def _halves(blocks: Bytes, first: int) -> npt.NDArray[np.float16]:
    return np.ascontiguousarray(blocks[..., first : first + 2]).view("<f2")[..., 0].astype(np.float16)


def _nibbles(codes: Bytes) -> Bytes:
    """[rows, blocks, 16] -> [rows, blocks * 32]: the lower halves are the first 16 weights, the upper ones the rest."""
    return np.concatenate([codes & 15, codes >> 4], axis=-1).reshape(len(codes), -1)

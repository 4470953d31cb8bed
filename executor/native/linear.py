"""Matrix products of the native kernels: y = x W^T + b with packed weights."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from executor.native.library import Crew, Library

Floats = npt.NDArray[np.float32]
PackedBytes = npt.NDArray[np.uint8]

PANEL = 16  # output features that are packed together
_ALIGNMENT = 64


class WeightKind(enum.IntEnum):
    """How a matrix is stored; `octavo::WeightKind`."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2
    INT4 = 3


class Epilogue(enum.IntEnum):
    """What happens to a product before it is stored; `octavo::Epilogue`."""

    STORE = 0
    ADD = 1
    GATE_SILU = 2
    GATE_GELU = 3
    GATE_GELU_TANH = 4
    GATE_RELU = 5
    SILU = 6
    GELU = 7
    GELU_TANH = 8
    RELU = 9

    @property
    def is_gate(self) -> bool:
        """Whether panels come in pairs, gate then up, and the result is half as wide."""
        return Epilogue.GATE_SILU <= self <= Epilogue.GATE_RELU


class LinearStruct(ctypes.Structure):
    """`octavo::Linear`."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("outputs", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
        ("weights", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class PackedLinear:
    """A packed matrix, and the bias that its products get.

    Attributes:
        packed: `packed_bytes` of them, aligned to 64.
        bias: [outputs], or None.
    """

    kind: WeightKind
    outputs: int
    inputs: int
    packed: PackedBytes
    bias: Floats | None = None

    def struct(self) -> LinearStruct:
        """What the kernels take; valid as long as this lives."""
        bias = None if self.bias is None else self.bias.ctypes.data
        return LinearStruct(self.kind, self.outputs, self.inputs, self.packed.ctypes.data, bias)


def packed_bytes(library: Library, kind: WeightKind, outputs: int, inputs: int) -> int:
    """Size of a packed matrix."""
    size = library.function("octavo_packed_bytes", ctypes.c_int64, ctypes.c_int32, ctypes.c_int64, ctypes.c_int64)
    return int(size(kind, outputs, inputs))


def pack(library: Library, kind: WeightKind, weights: npt.ArrayLike, bias: npt.ArrayLike | None = None) -> PackedLinear:
    """Packs a matrix.

    Args:
        weights: [outputs, inputs].
        bias: [outputs].
    """
    matrix = np.ascontiguousarray(weights, dtype=np.float32)
    outputs, inputs = matrix.shape
    packed = aligned_bytes(packed_bytes(library, kind, outputs, inputs))
    _packing(library, "octavo_pack")(kind, outputs, inputs, matrix.ctypes.data, packed.ctypes.data)
    floats = None if bias is None else np.ascontiguousarray(bias, dtype=np.float32)
    if floats is not None and floats.shape != (outputs,):
        raise ValueError(f"bias has shape {floats.shape}, not ({outputs},)")
    return PackedLinear(kind, outputs, inputs, packed, floats)


def unpack(library: Library, linear: PackedLinear) -> Floats:
    """The [outputs, inputs] values that products are made with, exactly."""
    weights = np.empty((linear.outputs, linear.inputs), np.float32)
    arguments = (linear.kind, linear.outputs, linear.inputs, linear.packed.ctypes.data, weights.ctypes.data)
    _packing(library, "octavo_unpack")(*arguments)
    return weights


def interleave(gate: Floats, up: Floats) -> Floats:
    """The rows (or biases) of a gated pair of matrices as one matrix, a panel of gate and a panel of up in turns.

    Each is padded with zeros to whole panels.
    """
    padding = [(0, -len(gate) % PANEL)] + [(0, 0)] * (gate.ndim - 1)
    panels = [np.pad(half, padding).reshape(-1, 1, PANEL, *gate.shape[1:]) for half in (gate, up)]
    return np.concatenate(panels, axis=1).reshape(-1, *gate.shape[1:])


def multiply(
    library: Library,
    crew: Crew,
    matrices: PackedLinear | Sequence[PackedLinear],
    x: Floats,
    y: Floats,
    epilogue: Epilogue = Epilogue.STORE,
    workspace: PackedBytes | None = None,
) -> None:
    """Computes y = epilogue(x W^T + b) by the crew's threads.

    Args:
        matrices: one, or several of one shape that are multiplied with one after the other, each of them writing y.
        x: [rows, inputs]; rows may be apart, elements of a row not.
        y: [rows, outputs], half as wide with a gate; likewise.
        workspace: `workspace_bytes` of them, aligned to 64; allocated here if None.
    """
    several = [matrices] if isinstance(matrices, PackedLinear) else matrices
    kind, outputs, inputs = several[0].kind, several[0].outputs, several[0].inputs
    if any((matrix.kind, matrix.outputs, matrix.inputs) != (kind, outputs, inputs) for matrix in several):
        raise ValueError("the matrices are not all of one kind and shape")
    if epilogue.is_gate and outputs % (2 * PANEL):
        raise ValueError(f"a gated product has a multiple of {2 * PANEL} outputs, not {outputs}")
    rows = len(x)
    for name, array, columns in (("x", x, inputs), ("y", y, outputs // 2 if epilogue.is_gate else outputs)):
        is_contiguous = columns == 1 or array.strides[1] == array.itemsize
        if array.shape != (rows, columns) or array.dtype != np.float32 or not is_contiguous:
            raise ValueError(f"{name} is not [{rows}, {columns}] float32 with contiguous rows")
    if workspace is None:
        workspace = aligned_bytes(workspace_bytes(library, kind, rows, inputs))
    structs = (LinearStruct * len(several))(*(matrix.struct() for matrix in several))
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    types = (pointer, pointer, size, pointer, size, size, pointer, size, ctypes.c_int32, pointer)
    library.function("octavo_linear", None, *types)(
        crew.handle,
        ctypes.addressof(structs),
        len(structs),
        x.ctypes.data,
        x.strides[0] // x.itemsize,
        rows,
        y.ctypes.data,
        y.strides[0] // y.itemsize,
        epilogue,
        workspace.ctypes.data,
    )


def workspace_bytes(library: Library, kind: WeightKind, rows: int, inputs: int) -> int:
    """Memory that a product needs beside its arguments."""
    size = library.function(
        "octavo_linear_workspace_bytes", ctypes.c_int64, ctypes.c_int32, ctypes.c_int64, ctypes.c_int64
    )
    return int(size(kind, rows, inputs))


def aligned_bytes(size: int) -> PackedBytes:
    """Memory that begins at a multiple of 64 bytes."""
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size]


def _packing(library: Library, name: str) -> ctypes._NamedFuncPointer:
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    return library.function(name, None, ctypes.c_int32, size, size, pointer, pointer)

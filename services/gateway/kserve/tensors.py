"""Tensors from the wire and to it: in fields of their datatype, or raw."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.kserve import inference_pb2
from services.gateway.kserve.errors import invalid

_LENGTH = struct.Struct("<I")
"""Before each raw BYTES element."""


@dataclass(frozen=True, slots=True)
class Datatype:
    """How elements are held.

    Attributes:
        field: of InferTensorContents.
        format: of one raw element, as of `struct`; empty: its length and so many bytes.
    """

    field: str
    format: str


DATATYPES = {
    "BOOL": Datatype("bool_contents", "?"),
    "INT8": Datatype("int_contents", "b"),
    "INT16": Datatype("int_contents", "h"),
    "INT32": Datatype("int_contents", "i"),
    "INT64": Datatype("int64_contents", "q"),
    "UINT8": Datatype("uint_contents", "B"),
    "UINT16": Datatype("uint_contents", "H"),
    "UINT32": Datatype("uint_contents", "I"),
    "UINT64": Datatype("uint64_contents", "Q"),
    "FP32": Datatype("fp32_contents", "f"),
    "FP64": Datatype("fp64_contents", "d"),
    "BYTES": Datatype("bytes_contents", ""),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """Elements, in row-major order."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: Sequence[Any]


def decode_inputs(request: inference_pb2.ModelInferRequest) -> dict[str, Tensor]:
    """A request's inputs by name.

    Raises:
        RpcError: INVALID_ARGUMENT, naming the input.
    """
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise invalid("raw_input_contents", f"must be as many as there are inputs ({len(request.inputs)}) or none")
    tensors: dict[str, Tensor] = {}
    for index, tensor in enumerate(request.inputs):
        name = tensor.name
        if not name or name in tensors:
            raise invalid(f"inputs[{index}].name", "is given twice" if name else "is missing")
        tensors[name] = _decode(tensor, raw[index] if raw else None)
    return tensors


def _decode(tensor: inference_pb2.ModelInferRequest.InferInputTensor, raw: bytes | None) -> Tensor:
    name, datatype, shape = tensor.name, DATATYPES.get(tensor.datatype), tuple(tensor.shape)
    if datatype is None:
        raise invalid(name, f"datatype must be one of {', '.join(DATATYPES)}, is {tensor.datatype!r}")
    if tensor.parameters:
        raise invalid(name, f"parameter {min(tensor.parameters)!r} is not taken: elements come with the request")
    if not shape or min(shape) < 1:
        raise invalid(name, f"shape must have sizes from 1 on, is {list(shape)}")
    if raw is not None and tensor.HasField("contents"):
        raise invalid(name, "has contents, and raw_input_contents as well")
    values = _from_contents(tensor, datatype) if raw is None else _from_raw(name, datatype, raw)
    if len(values) != math.prod(shape):
        raise invalid(name, f"has {len(values)} elements, its shape {list(shape)} is of {math.prod(shape)}")
    return Tensor(name, tensor.datatype, shape, values)


def _from_contents(tensor: inference_pb2.ModelInferRequest.InferInputTensor, datatype: Datatype) -> list[Any]:
    others = [field.name for field, _ in tensor.contents.ListFields() if field.name != datatype.field]
    if others:
        raise invalid(tensor.name, f"is {tensor.datatype}: its elements must be in {datatype.field}, not {others[0]}")
    return list(getattr(tensor.contents, datatype.field))


def _from_raw(name: str, datatype: Datatype, raw: bytes) -> Sequence[Any]:
    if not datatype.format:
        return _split(name, raw)
    count, rest = divmod(len(raw), struct.calcsize(datatype.format))
    if rest:
        raise invalid(name, f"raw_input_contents has {len(raw)} bytes, which are no whole number of elements")
    return struct.unpack(f"<{count}{datatype.format}", raw)


def _split(name: str, raw: bytes) -> list[bytes]:
    elements = []
    position = 0
    while position < len(raw):
        start = position + _LENGTH.size
        end = start + _LENGTH.unpack_from(raw, position)[0] if start <= len(raw) else start
        if end > len(raw):
            raise invalid(name, f"raw_input_contents breaks off: an element would end at byte {end} of {len(raw)}")
        elements.append(raw[start:end])
        position = end
    return elements


def add_outputs(response: inference_pb2.ModelInferResponse, tensors: Iterable[Tensor], *, raw: bool) -> None:
    """Puts tensors into a response."""
    for tensor in tensors:
        output = response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        datatype = DATATYPES[tensor.datatype]
        if raw:
            response.raw_output_contents.append(_to_raw(datatype, tensor.values))
        else:
            getattr(output.contents, datatype.field).extend(tensor.values)


def _to_raw(datatype: Datatype, values: Sequence[Any]) -> bytes:
    if not datatype.format:
        return b"".join(_LENGTH.pack(len(value)) + value for value in values)
    return struct.pack(f"<{len(values)}{datatype.format}", *values)

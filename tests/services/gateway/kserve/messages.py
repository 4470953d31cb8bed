"""Requests and responses of the open inference protocol, in plain Python."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from octavo.kserve import inference_pb2

FORMATS = {"BOOL": "?", "INT32": "i", "INT64": "q", "UINT32": "I", "UINT64": "Q", "FP32": "f", "FP64": "d"}
FIELDS = {
    "BOOL": "bool_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}

Given = tuple[str, Sequence[int], Sequence[Any]]
"""Datatype, shape and elements."""


def text(*prompts: str) -> Given:
    return "BYTES", [len(prompts)], [each.encode() for each in prompts]


def infer_request(
    prompt: str | Given = "abc",
    *,
    raw: bool = True,
    id: str = "",
    model: str = "",
    outputs: Sequence[str] = (),
    parameters: Mapping[str, Any] | None = None,
    **inputs: Given,
) -> inference_pb2.ModelInferRequest:
    """A request with these inputs beside its text."""
    request = inference_pb2.ModelInferRequest(id=id, model_name=model)
    given = {"text_input": text(prompt) if isinstance(prompt, str) else prompt, **inputs}
    for name, (datatype, shape, values) in given.items():
        tensor = request.inputs.add(name=name, datatype=datatype, shape=shape)
        if raw:
            request.raw_input_contents.append(pack(datatype, values))
        else:
            getattr(tensor.contents, FIELDS[datatype]).extend(values)
    for name in outputs:
        request.outputs.add(name=name)
    for name, value in (parameters or {}).items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}[type(value)]
        setattr(request.parameters[name], kind, value)
    return request


def pack(datatype: str, values: Sequence[Any]) -> bytes:
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(each)) + each for each in values)
    return struct.pack(f"<{len(values)}{FORMATS[datatype]}", *values)


def output(response: inference_pb2.ModelInferResponse, name: str) -> Any:
    """An output's elements, nested as its shape says."""
    (index,) = [index for index, each in enumerate(response.outputs) if each.name == name]
    tensor = response.outputs[index]
    if response.raw_output_contents:
        assert len(response.raw_output_contents) == len(response.outputs)
        values = unpack(tensor.datatype, response.raw_output_contents[index])
    else:
        values = list(getattr(tensor.contents, FIELDS[tensor.datatype]))
    return np.array(values, dtype=object).reshape(tensor.shape).tolist()


def unpack(datatype: str, raw: bytes) -> list[Any]:
    if datatype != "BYTES":
        size = struct.calcsize(FORMATS[datatype])
        return list(struct.unpack(f"<{len(raw) // size}{FORMATS[datatype]}", raw))
    values = []
    while raw:
        (length,) = struct.unpack_from("<I", raw)
        values.append(raw[4 : 4 + length])
        raw = raw[4 + length :]
    return values

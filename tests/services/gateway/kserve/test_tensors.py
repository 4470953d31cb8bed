"""Tensors come back from both forms, and bytes that are none are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kserve import inference_pb2
from services.gateway.kserve.requests import decode_request
from services.gateway.kserve.tensors import DATATYPES, Tensor, add_outputs, decode_inputs
from services.rpc.status import RpcError

BITS = {"INT8": 8, "INT16": 16, "INT32": 32, "INT64": 64, "UINT8": 8, "UINT16": 16, "UINT32": 32, "UINT64": 64}


def elements(datatype: str) -> st.SearchStrategy[Any]:
    if datatype == "BOOL":
        return st.booleans()
    if datatype == "BYTES":
        return st.binary(max_size=9)
    if datatype in BITS:
        size = 2 ** BITS[datatype]
        return st.integers(0, size - 1) if datatype.startswith("U") else st.integers(-size // 2, size // 2 - 1)
    return st.floats(width=int(datatype[2:]), allow_nan=False)


@st.composite
def tensors(draw: st.DrawFn, name: str) -> Tensor:
    datatype = draw(st.sampled_from(sorted(DATATYPES)))
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    count = 1
    for size in shape:
        count *= size
    return Tensor(name, datatype, tuple(shape), draw(st.lists(elements(datatype), min_size=count, max_size=count)))


@settings(max_examples=100, deadline=None)
@given(data=st.data(), raw=st.booleans())
def test_they_come_back(data: st.DataObject, raw: bool) -> None:
    given_ones = [data.draw(tensors(f"t{index}")) for index in range(data.draw(st.integers(1, 3)))]
    response = inference_pb2.ModelInferResponse()
    add_outputs(response, given_ones, raw=raw)
    request = inference_pb2.ModelInferRequest(raw_input_contents=response.raw_output_contents)
    for output in response.outputs:
        tensor = request.inputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
        if not raw:
            tensor.contents.CopyFrom(output.contents)
    back = decode_inputs(inference_pb2.ModelInferRequest.FromString(request.SerializeToString()))
    assert [(each.name, each.datatype, each.shape, list(each.values)) for each in back.values()] == [
        (each.name, each.datatype, each.shape, each.values) for each in given_ones
    ]


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(["text_input", "max_tokens", "stop", "stream", "sampling_parameters", "logit_bias"]),
    datatype=st.sampled_from([*DATATYPES, "FP16", ""]),
    shape=st.lists(st.integers(-2, 5), max_size=3),
    content=st.binary(max_size=24),
)
def test_whatever_comes_is_understood_or_refused(name: str, datatype: str, shape: list[int], content: bytes) -> None:
    request = inference_pb2.ModelInferRequest(raw_input_contents=[b"\1\0\0\0a"])
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    if name != "text_input":
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(content)
    else:
        request.inputs[0].shape[:] = shape
        request.raw_input_contents[0] = content
    error = refusal_of(request)
    if error is not None:
        assert error.field.startswith(name)
        assert error.message.startswith(f"{error.field}: ")


def refusal_of(request: inference_pb2.ModelInferRequest) -> RpcError | None:
    try:
        decode_request(request, None)
    except RpcError as error:
        return error
    return None


@pytest.mark.parametrize("size", [2**62, 2**40])
def test_a_shape_that_claims_much(size: int) -> None:
    request = inference_pb2.ModelInferRequest(raw_input_contents=[b"\1\0\0\0a"])
    request.inputs.add(name="text_input", datatype="BYTES", shape=[size, size])
    with pytest.raises(RpcError, match="text_input: has 1 elements"):
        decode_request(request, None)

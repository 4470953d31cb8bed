"""Packed columns, and requests that can't be read."""

from __future__ import annotations

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.v1 import common_pb2, inference_pb2
from services.rpc.columns import (
    pack_float32,
    pack_int32,
    pack_int64,
    pack_int64_tuples,
    pack_tuples,
    unpack_float32,
    unpack_int32,
    unpack_int64,
    unpack_int64_tuples,
    unpack_tuples,
)
from services.rpc.parsing import parse
from services.rpc.status import RpcError


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_int32_columns_come_back(values):
    assert unpack_int32(pack_int32(values)) == values


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_int64_columns_come_back(values):
    assert unpack_int64(pack_int64(values)) == values


@given(st.lists(st.tuples(*[st.integers(0, 2**31 - 1)] * 3)))
def test_tuples_come_back(rows):
    assert unpack_tuples(pack_tuples(rows), 3) == rows


@given(st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 3)))
def test_int64_tuples_come_back(rows):
    assert unpack_int64_tuples(pack_int64_tuples(rows), 3) == rows


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_float32_columns_come_back(values):
    assert unpack_float32(pack_float32(values)) == values


def test_columns_are_little_endian():
    assert pack_int32([1, 256]) == b"\x01\0\0\0\0\x01\0\0"
    assert pack_int64([1]) == b"\x01\0\0\0\0\0\0\0"
    assert pack_float32([-2.0]) == b"\0\0\0\xc0"


@pytest.mark.parametrize(
    "broken",
    [
        lambda: unpack_int32(b"123"),
        lambda: unpack_int64(b"1234"),
        lambda: unpack_float32(b"12345"),
        lambda: unpack_tuples(pack_int32([1, 2]), 3),
        lambda: unpack_int64_tuples(pack_int64([1, 2]), 3),
    ],
)
def test_impossible_lengths_are_refused(broken):
    with pytest.raises(ValueError, match=r"."):
        broken()


def broken_text(message: inference_pb2.GenerateRequest, text: str = "~~~~") -> bytes:
    """The message on the wire, with a text in it that is no UTF-8."""
    data = message.SerializeToString()
    assert text.encode() in data
    return data.replace(text.encode(), b"\xff\xfe\xc3\x28")


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("model", inference_pb2.GenerateRequest(model="~~~~")),
        ("prompt.text", inference_pb2.GenerateRequest(prompt=inference_pb2.Prompt(text="~~~~"))),
        (
            "prompt.chat.messages[1].content",
            inference_pb2.GenerateRequest(
                prompt=inference_pb2.Prompt(
                    chat=inference_pb2.ChatPrompt(
                        messages=[
                            inference_pb2.ChatMessage(role="user", content="ä"),
                            inference_pb2.ChatMessage(role="user", content="~~~~"),
                        ]
                    )
                )
            ),
        ),
        ("sampling.stop[1]", inference_pb2.GenerateRequest(sampling=common_pb2.SamplingParams(stop=["ü", "~~~~"]))),
    ],
)
def test_the_field_that_is_no_text_is_named(field, message):
    with pytest.raises(RpcError) as caught:
        parse(inference_pb2.GenerateRequest, broken_text(message))
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.field == field
    assert field in caught.value.message


def test_bytes_that_are_no_message_at_all():
    with pytest.raises(RpcError) as caught:
        parse(inference_pb2.GenerateRequest, b"\xff\xff\xff\xff")
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert "GenerateRequest" in caught.value.message


def test_a_good_message_is_read():
    message = inference_pb2.GenerateRequest(prompt=inference_pb2.Prompt(text="größer"))
    assert parse(inference_pb2.GenerateRequest, message.SerializeToString()) == message

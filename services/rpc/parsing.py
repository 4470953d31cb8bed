"""Requests from the wire, with a clear word when they can't be read.

Generated handlers parse before any code of ours runs, and answer what they can't parse with INTERNAL. Public methods
take plain bytes instead and parse here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError, Message

from services.rpc.status import RpcError

M = TypeVar("M", bound=Message)


def parse(message_type: type[M], data: bytes) -> M:
    """Reads one message.

    Raises:
        RpcError: INVALID_ARGUMENT, naming the text field that is not UTF-8, or saying that this is no such message.
    """
    try:
        return message_type.FromString(data)
    except DecodeError:
        pass
    field = _first_field_that_is_no_text(message_type, data)
    if field:
        raise RpcError(grpc.StatusCode.INVALID_ARGUMENT, f"{field}: is not valid UTF-8", "INVALID_UTF8", field)
    name = message_type.DESCRIPTOR.name
    raise RpcError(grpc.StatusCode.INVALID_ARGUMENT, f"the request is not a {name} message", "MALFORMED_REQUEST")


def _first_field_that_is_no_text(message_type: type[Message], data: bytes) -> str:
    try:
        twin = _twin_with_bytes_for_text(message_type).FromString(data)
    except DecodeError:
        return ""
    return next(_fields_that_are_no_text(twin, message_type.DESCRIPTOR.file.pool), "")


def _twin_with_bytes_for_text(message_type: type[Message]) -> type[Message]:
    """The same message with every string field declared as bytes, which are the same on the wire."""
    pool = descriptor_pool.DescriptorPool()
    _add_twins(message_type.DESCRIPTOR.file, pool, set())
    twin: type[Message] = message_factory.GetMessageClass(pool.FindMessageTypeByName(message_type.DESCRIPTOR.full_name))
    return twin


def _add_twins(file: Any, pool: descriptor_pool.DescriptorPool, added: set[str]) -> None:
    for dependency in file.dependencies:
        if dependency.name not in added:
            _add_twins(dependency, pool, added)
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    for message in proto.message_type:
        for field in message.field:
            if field.type == FieldDescriptorProto.TYPE_STRING:
                field.type = FieldDescriptorProto.TYPE_BYTES
    pool.Add(proto)
    added.add(file.name)


def _fields_that_are_no_text(twin: Message, pool: Any, path: str = "") -> Iterator[str]:
    declared = pool.FindMessageTypeByName(twin.DESCRIPTOR.full_name).fields_by_name
    for field, value in twin.ListFields():
        for place, item in _items(path + field.name, field, value):
            if isinstance(item, Message):
                yield from _fields_that_are_no_text(item, pool, f"{place}.")
            elif declared[field.name].type == FieldDescriptor.TYPE_STRING and not _is_text(item):
                yield place


def _items(path: str, field: FieldDescriptor, value: Any) -> Iterator[tuple[str, object]]:
    if field.is_repeated:
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item
    else:
        yield path, value


def _is_text(data: object) -> bool:
    assert isinstance(data, bytes)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True

"""Messages for fuzzing, made from their descriptors: mostly sensible ones, nasty ones, and bytes that were one once."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_FLOATS = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)
_NASTY_FLOATS = (float("nan"), float("inf"), -float("inf"), -0.0, 1e-40, -1e38, 1e38, 2.0, 1.0, -1.0)
_NASTY_TEXTS = (
    "",
    "\0",
    "\x1b[2J\r\n",
    "{{ bos_token }}{% for %}",
    "<s><|end|>",
    "e\u0301\u200d\ufeff\u202e",
    "\U0001f419" * 40,
    "shared:" + "x" * 200,
    "../../etc/passwd",
    "a" * 5000,
    "word " * 4000,
)
_WORDS = ("The sheet ", "is folded", " page", "\n", "été ", "印刷所", "🐙", "user", "a", " ", "<s>")
_MAX_DEPTH = 6
_NASTY = 0.04
_MANY = 0.01


class Messages:
    """Makes messages of any type.

    Args:
        rng: all that is random.
        known: sensible values of some fields by name, where not just anything will do.
        usual: names of fields that are given nearly always.
    """

    def __init__(
        self, rng: random.Random, known: Mapping[str, Callable[[random.Random], Any]], usual: Collection[str]
    ) -> None:
        self._rng = rng
        self._known = known
        self._usual = usual

    def make(self, descriptor: Descriptor) -> bytes:
        """One message on the wire."""
        message = self._message(descriptor, nasty=_NASTY if self._rng.random() < 0.5 else 0.0, depth=0)
        for _ in range(self._rng.choice((0, 0, 0, 1, 1, 3))):
            self._mutate(message)
        data = message.SerializeToString()
        return self._spoil(data) if self._rng.random() < 0.25 else data

    # A message that makes some sense

    def _message(self, descriptor: Descriptor, nasty: float, depth: int) -> Message:
        message: Message = GetMessageClass(descriptor)()
        if descriptor.full_name == "google.protobuf.Duration":
            self._set_duration(message, nasty)
            return message
        chosen = {self._rng.choice(oneof.fields).name for oneof in descriptor.oneofs if len(oneof.fields) > 1}
        for field in descriptor.fields:
            alternatives = field.containing_oneof is not None and len(field.containing_oneof.fields) > 1
            if field.name in chosen if alternatives else self._is_given(field, depth):
                self._fill(message, field, nasty, depth)
        return message

    def _is_given(self, field: FieldDescriptor, depth: int) -> bool:
        if depth >= _MAX_DEPTH and field.message_type is not None:
            return False
        return self._rng.random() < (0.95 if field.name in self._usual else 0.1)

    def _fill(self, message: Message, field: FieldDescriptor, nasty: float, depth: int) -> None:
        if _is_map(field):
            self._fill_map(message, field, nasty)
        elif field.is_repeated:
            few = self._rng.randrange(1, 4)
            count = self._rng.choice((70, 1500)) if self._rng.random() < _MANY else few
            for _ in range(count):
                if field.message_type is not None:
                    getattr(message, field.name).add().CopyFrom(self._message(field.message_type, nasty, depth + 1))
                else:
                    getattr(message, field.name).append(self._value(field, nasty))
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(self._message(field.message_type, nasty, depth + 1))
            getattr(message, field.name).SetInParent()
        else:
            setattr(message, field.name, self._value(field, nasty))

    def _fill_map(self, message: Message, field: FieldDescriptor, nasty: float) -> None:
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        for _ in range(self._rng.randrange(4)):
            getattr(message, field.name)[self._value(key, nasty)] = self._value(value, nasty)

    def _set_duration(self, message: Any, nasty: float) -> None:
        if self._rng.random() < nasty:
            message.seconds = self._nasty_integer(FieldDescriptor.CPPTYPE_INT64)
            message.nanos = self._nasty_integer(FieldDescriptor.CPPTYPE_INT32)
        else:
            message.seconds, message.nanos = self._rng.choice(((0, 50_000_000), (1, 0), (5, 0), (60, 0)))

    # Values

    def _value(self, field: FieldDescriptor, nasty: float) -> Any:
        if self._rng.random() < nasty:
            return self._nasty_value(field)
        if field.name in self._known:
            return self._known[field.name](self._rng)
        kind = field.cpp_type
        if kind in _INTEGERS:
            return self._rng.choice((0, 1, 2, 3, 7, self._rng.randrange(400)))
        if kind in _FLOATS:
            return self._rng.choice((0.0, 0.5, 1.0, self._rng.random()))
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return self._rng.random() < 0.5
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return self._rng.choice(field.enum_type.values).number
        text = "".join(self._rng.choice(_WORDS) for _ in range(self._rng.randrange(1, 12)))
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text

    def _nasty_value(self, field: FieldDescriptor) -> Any:
        kind = field.cpp_type
        if kind in _INTEGERS:
            return self._nasty_integer(kind)
        if kind in _FLOATS:
            return self._rng.choice((*_NASTY_FLOATS, self._rng.uniform(-300, 300)))
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return True
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return self._rng.choice((-1, 99, 2**31 - 1))
        text = self._rng.choice(_NASTY_TEXTS)
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text

    def _nasty_integer(self, kind: int) -> int:
        low, high = _INTEGERS[kind]
        near = self._rng.choice(
            (low, low + 1, -1, 0, 1, 63, 64, 65, 128, 129, 384, 511, 512, 513, 2**16, high - 1, high)
        )
        return min(max(near, low), high)

    # Mutations of fields

    def _mutate(self, message: Message) -> None:
        """Changes one field, somewhere inside."""
        target = self._rng.choice(_all_inside(message))
        fields = target.DESCRIPTOR.fields
        if not fields:
            return
        field = self._rng.choice(fields)
        if self._rng.random() < 0.3:
            target.ClearField(field.name)
        elif field.message_type is not None or field.is_repeated:
            self._fill(target, field, nasty=0.5, depth=_MAX_DEPTH - 2)
        else:
            setattr(target, field.name, self._nasty_value(field))

    # Mutations of bytes

    def _spoil(self, data: bytes) -> bytes:
        spoil = self._rng.choice(
            (self._flip, self._cut, self._insert, self._repeat, self._lie_about_length, self._noise)
        )
        return spoil(bytearray(data))

    def _place(self, data: bytearray) -> int:
        return self._rng.randrange(len(data) + 1)

    def _flip(self, data: bytearray) -> bytes:
        for _ in range(self._rng.choice((1, 1, 2, 8))):
            if data:
                data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
        return bytes(data)

    def _cut(self, data: bytearray) -> bytes:
        return bytes(data[: self._place(data)])

    def _insert(self, data: bytearray) -> bytes:
        place = self._place(data)
        return bytes(data[:place] + self._rng.randbytes(self._rng.randrange(1, 9)) + data[place:])

    def _repeat(self, data: bytearray) -> bytes:
        start, end = sorted((self._place(data), self._place(data)))
        return bytes(data[:end] + data[start:end] * self._rng.choice((1, 2, 20)) + data[end:])

    def _lie_about_length(self, data: bytearray) -> bytes:
        if data:
            data[self._rng.randrange(len(data))] = self._rng.choice((0x7F, 0x80, 0xFF))
        return bytes(data)

    def _noise(self, data: bytearray) -> bytes:
        return self._rng.randbytes(self._rng.randrange(200))


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _all_inside(message: Message) -> Sequence[Message]:
    """The message and those in it that are set."""
    found = [message]
    for field, value in message.ListFields():
        if field.message_type is None or _is_map(field):
            continue
        for each in value if field.is_repeated else [value]:
            found += _all_inside(each)
    return found


def names_a_field(descriptor: Descriptor, path: str) -> bool:
    """Whether a path such as ``prompt.chat.messages[1].content`` leads to a field of the message."""
    known: Descriptor | None = descriptor
    for part in path.split("."):
        name = part.partition("[")[0]
        if known is None or name not in known.fields_by_name:
            return False
        known = known.fields_by_name[name].message_type
    return True

"""Mutations of protobuf messages field by field, so that the result is valid on the wire and reaches the
checks after the parser."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

__all__ = ["change", "damaged"]

Scramble: TypeAlias = Callable[[bytes], bytes]
_SMALL: Final = (0, 1, 2, 3, 8, 12, 13, 63, 64, 65, 127, 128, 255)
_INTEGERS: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), -1, 2**31 - 1, *_SMALL),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), -1, 2**31, 2**63 - 1, *_SMALL),
    FieldDescriptor.CPPTYPE_UINT32: (2**31, 2**32 - 1, *_SMALL),
    FieldDescriptor.CPPTYPE_UINT64: (2**63, 2**64 - 1, *_SMALL),
    FieldDescriptor.CPPTYPE_ENUM: (-1, 9, 100, 2**31 - 1, *range(6)),
}
_FLOATS: Final = (0.0, -0.0, -1.0, 0.02, 1.0, 1e308, 5e-324, float("nan"), float("inf"), float("-inf"))
_TEXTS: Final = ("", "a", "b", "c", "ä" * 33, "a/b", "/", "a//b", "x" * 129, "x" * 200, "x" * 201, "\0", "𐀀")
#: sequences of four bytes that mean something: as token ids, as float32
_WORDS: Final = (
    b"\0\0\0\0",
    b"\x64\0\0\0",
    b"\x65\0\0\0",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\0\0\0\x80",
    b"\0\0\x80\x3f",
    b"\0\0\x00\x3f",
    b"\x01\0\x80\x3f",
    b"\0\0\xc0\x7f",
    b"\0\0\x80\x7f",
)


def change(message: Message, choice: random.Random, scramble: Scramble) -> None:
    """Change one field of a message, or of one in it.

    Args:
        scramble: another value of a field of bytes.
    """
    if not message.DESCRIPTOR.fields:
        return
    field: Any = choice.choice(message.DESCRIPTOR.fields)
    if field.is_repeated:
        _change_list(message, field, choice, scramble)
    elif choice.random() < 0.1:
        message.ClearField(field.name)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        change(getattr(message, field.name), choice, scramble)
    else:
        setattr(message, field.name, _value(field, getattr(message, field.name), choice, scramble))


def _change_list(message: Message, field: FieldDescriptor, choice: random.Random, scramble: Scramble) -> None:
    items: Any = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key = choice.choice(_TEXTS)
        if choice.random() < 0.3:
            message.ClearField(field.name)
        else:
            items[key] = choice.choice(_TEXTS)
    elif len(items) and choice.random() < 0.3:
        del items[choice.randrange(len(items))]
    elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        if len(items) and choice.random() < 0.7:
            change(choice.choice(items), choice, scramble)
        else:
            new = items.add()
            if len(items) > 1:
                new.CopyFrom(choice.choice(items[:-1]))
            change(new, choice, scramble)
    else:
        items.append(_value(field, None, choice, scramble))


def _value(field: FieldDescriptor, old: Any, choice: random.Random, scramble: Scramble) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return not old
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return choice.choice(_FLOATS)
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return _bytes(old or b"", choice, scramble)
        case FieldDescriptor.CPPTYPE_STRING:
            return choice.choice(_TEXTS)
        case kind:
            return choice.choice(_INTEGERS[kind])


def _bytes(old: bytes, choice: random.Random, scramble: Scramble) -> bytes:
    at = choice.randrange(len(old) // 4 + 1) * 4
    match choice.randrange(4):
        case 0:
            return old[:at] + choice.choice(_WORDS) * choice.choice((1, 1, 1, 16, 65)) + old[at:]
        case 1:
            return old[:at] + choice.choice(_WORDS) + old[at + 4 :]
        case 2:
            return old[:at] + old[at + choice.choice((1, 4)) :]
        case _:
            return scramble(old)


def damaged(data: bytes, choice: random.Random) -> bytes:
    """Bytes with a few of them changed, removed, repeated or added."""
    changed = bytearray(data)
    for _ in range(choice.choice((1, 1, 2, 4))):
        at = choice.randrange(len(changed) + 1)
        match choice.randrange(5):
            case 0:
                changed[at:at] = choice.randbytes(choice.choice((1, 2, 10)))
            case 1:
                del changed[at:]
            case 2:
                changed[at : at + 1] = b"\xff" * choice.choice((1, 5, 10))  # an integer that is too long
            case 3:
                changed[at:at] = changed[: choice.randrange(64)]
            case _:
                changed[at : at + 1] = choice.randbytes(1)
    return bytes(changed)

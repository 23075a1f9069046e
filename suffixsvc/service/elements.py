"""Element counts of serialised messages, taken before protobuf builds an object for each element.

A message of 16 MiB holds up to eight million empty sub-messages. Protobuf builds them all while it holds the
interpreter's lock (a second or more), and only then can they be counted. :class:`ElementLimits` walks the
bytes instead and stops at the first element too many, so a refusal costs at most as many steps as a message
that is accepted may have elements. Strings and token arrays are skipped by their length.

An element is a field of the message or of a message inside it, or a number of a packed field. The encoding is
read as protobuf reads it: a property test compares the counts with those of parsed messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from suffixsvc.errors import InvalidInputError, LimitExceededError

__all__ = ["ElementLimits", "MessageReader", "first_number", "too_many"]

M = TypeVar("M", bound=Message)

#: messages up to this size are not counted: they hold at most half as many elements
SMALL_BYTES: Final = 4096

_VARINT, _FIXED64, _BYTES, _GROUP, _END_GROUP, _FIXED32 = range(6)
_WIDTH_OF: Final = {
    FieldDescriptor.TYPE_DOUBLE: 8,
    FieldDescriptor.TYPE_FIXED64: 8,
    FieldDescriptor.TYPE_SFIXED64: 8,
    FieldDescriptor.TYPE_FLOAT: 4,
    FieldDescriptor.TYPE_FIXED32: 4,
    FieldDescriptor.TYPE_SFIXED32: 4,
}
_WIRE_TYPE_OF_WIDTH: Final = {0: _VARINT, 4: _FIXED32, 8: _FIXED64}
_SIZE_OF: Final = {_FIXED64: 8, _GROUP: 0, _END_GROUP: 0, _FIXED32: 4}
#: bytes that begin or go on with a varint and do not end it
_UNFINISHED: Final = bytes(range(0x80, 0x100))
#: bytes of the longest tag and of the longest length of a field
_LONGEST_TAG: Final = 5
_LONGEST_VARINT: Final = 10
_MAX_UINT64: Final = (1 << 64) - 1


class _Field(NamedTuple):
    """What a tag means, where it matters for counting."""

    path: str
    #: of a message: the meaning of its tags
    inside: Mapping[int, _Field] | None
    #: of packed numbers: bytes of one, 0 = varints; -1: not packed
    width: int


class _Malformed(Exception):  # a signal inside this module, never seen outside
    """The bytes are no message."""


def too_many(what: str, most: int, got: object, remedy: str) -> LimitExceededError:
    """A message has more of something than it may have."""
    return LimitExceededError(
        f"{what} must be at most {most} in a message", expected=f"at most {most}", got=got, remedy=remedy
    )


class ElementLimits:
    """How many elements messages of one type may have.

    Args:
        message_type: of the messages.
        limits: by the path of a repeated field, as in ``outputs.segment_lens``: how many of it a message may
            have, in all its sub-messages together.
        most: elements of any kind.
        remedy: of the error.
    """

    def __init__(
        self, message_type: type[Message], limits: Mapping[str, int], most: int, remedy: str
    ) -> None:
        self._limits = dict(limits)
        self._most = most
        self._remedy = remedy
        self._fields = _fields_of(message_type.DESCRIPTOR, "")
        self._name = message_type.DESCRIPTOR.name

    def check(self, data: bytes) -> dict[str, int]:
        """Count; by path what was counted, and under "" the elements.

        Raises:
            LimitExceededError: there are too many of a kind.
            InvalidInputError: the bytes are no message.
        """
        counts = dict.fromkeys(("", *self._limits), 0)
        try:
            self._count(data, 0, len(data), self._fields, counts)
        except _Malformed:
            raise InvalidInputError(
                "a message cannot be read", expected=f"the bytes of a {self._name}", got=data[:16].hex()
            ) from None
        return counts

    def _count(
        self, data: bytes, at: int, end: int, fields: Mapping[int, _Field], counts: dict[str, int]
    ) -> None:
        groups = 0  # of fields that nobody knows: what is inside them is skipped
        while at < end:
            tag = data[at]
            at += 1
            if tag >= 0x80:
                tag, at = _varint(data, at - 1, end, _LONGEST_TAG)
            if tag >= 1 << 32 or (tag < 8 and not groups):  # field 0, which protobuf takes inside groups only
                raise _Malformed
            self._add("", 1, counts)
            field = None if groups else fields.get(tag)
            kind = tag & 7
            if kind == _BYTES:
                size, start = _varint(data, at, end, _LONGEST_TAG)
                at = start + size
                if at > end:
                    raise _Malformed
                if field is not None:
                    self._look_into(data, start, at, field, counts)
                continue
            groups += (kind == _GROUP) - (kind == _END_GROUP)
            at = _end_of_scalar(data, at, end, kind)
            if groups < 0 or at > end:
                raise _Malformed
            if field is not None:
                self._add(field.path, 1, counts)
        if groups:
            raise _Malformed

    def _look_into(self, data: bytes, at: int, end: int, field: _Field, counts: dict[str, int]) -> None:
        """A field with a length whose inside matters."""
        if field.inside is not None:
            self._add(field.path, 1, counts)
            self._count(data, at, end, field.inside, counts)
            return
        if field.width < 0:
            self._add(field.path, 1, counts)
            return
        size = end - at
        if field.width:
            numbers, rest = divmod(size, field.width)
        else:
            numbers = len(data[at:end].translate(None, _UNFINISHED))
            rest = size and data[end - 1] >= 0x80
        if rest:
            raise _Malformed
        self._add(field.path, numbers, counts)
        self._add("", numbers, counts)

    def _add(self, path: str, more: int, counts: dict[str, int]) -> None:
        """Note that there are ``more`` of what is at ``path``, if that is counted."""
        have = counts.get(path)
        if have is None:
            return
        counts[path] = have = have + more
        most = self._limits[path] if path else self._most
        if have > most:
            raise too_many(path or "elements", most, f"more than {most}", self._remedy)


class MessageReader(Generic[M]):
    """Bytes -> message, refused before it is parsed where it has too many elements."""

    def __init__(
        self,
        message_type: type[M],
        *,
        limits: Mapping[str, int] | None = None,
        most: int = SMALL_BYTES,
        remedy: str = "",
    ) -> None:
        self._parse: Callable[[bytes], M] = message_type.FromString
        self._name = message_type.DESCRIPTOR.name
        self._limits = ElementLimits(message_type, limits or {}, most, remedy)

    def __call__(self, data: bytes) -> M:
        """The message.

        Raises:
            LimitExceededError: there are too many elements of a kind.
            InvalidInputError: the bytes are no message.
        """
        if len(data) > SMALL_BYTES:
            self._limits.check(data)
        try:
            return self._parse(data)
        except DecodeError:
            raise InvalidInputError(
                "a message cannot be read", expected=f"the bytes of a {self._name}", got=data[:16].hex()
            ) from None


def first_number(data: bytes) -> int:
    """Field 1 of a message, where it is a number and comes first, as protobuf writes it; else 0."""
    if not data.startswith(b"\x08"):
        return 0
    try:
        return _varint(data, 1, len(data), _LONGEST_VARINT)[0] & _MAX_UINT64
    except _Malformed:
        return 0


def _fields_of(message: Any, prefix: str) -> dict[int, _Field]:
    """By tag, of a message's descriptor. A repeated number may come packed or not: it has two."""
    found: dict[int, _Field] = {}
    for field in message.fields:
        path = f"{prefix}{field.name}"
        key = field.number << 3
        if field.message_type is not None:
            found[key | _BYTES] = _Field(path, _fields_of(field.message_type, f"{path}."), -1)
        elif field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            found[key | _BYTES] = _Field(path, None, -1)
        else:
            width = _WIDTH_OF.get(field.type, 0)
            found[key | _WIRE_TYPE_OF_WIDTH[width]] = _Field(path, None, -1)
            if _is_repeated(field):
                found[key | _BYTES] = _Field(path, None, width)
    return found


def _is_repeated(field: FieldDescriptor) -> bool:
    """Protobuf before 6.31 has the label only, and later versions are about to remove it."""
    any_version: Any = field
    if hasattr(any_version, "is_repeated"):
        return bool(any_version.is_repeated)
    return bool(any_version.label == any_version.LABEL_REPEATED)


def _end_of_scalar(data: bytes, at: int, end: int, kind: int) -> int:
    """Where what follows a tag ends, of any kind but bytes."""
    if kind == _VARINT:
        return _varint(data, at, end, _LONGEST_VARINT)[1]
    try:
        return at + _SIZE_OF[kind]
    except KeyError:
        raise _Malformed from None


def _varint(data: bytes, at: int, end: int, longest: int) -> tuple[int, int]:
    """A number and where it ends. _Malformed: it goes on beyond ``end`` or ``longest`` bytes."""
    value = shift = 0
    last = min(end, at + longest)
    while at < last:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise _Malformed

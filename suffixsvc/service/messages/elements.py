"""Element counts of serialised messages, taken before protobuf creates an object for each element.

A message of 16 MiB can hold eight million empty sub-messages. Protobuf creates them all while it holds the
GIL (a second or more), and only then can they be counted. :class:`MessageReader` scans the bytes first and
stops at the first element over a limit, so that a refusal costs no more than the largest accepted message.
Strings and token arrays are skipped by their length.

An element is a field of the message or of a message inside it, or a number of a packed field. The encoding is
read as protobuf reads it: a property test compares the counts with those of parsed messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from suffixsvc.errors import InvalidInputError, LimitExceededError

M = TypeVar("M", bound=Message)

#: messages up to this size are not counted: they hold at most half as many elements as bytes
SMALL_BYTES: Final = 4096

_VARINT, _FIXED64, _BYTES, _GROUP, _END_GROUP, _FIXED32 = range(6)
_SIZE_OF: Final = {_FIXED64: 8, _GROUP: 0, _END_GROUP: 0, _FIXED32: 4}
#: varint bytes with the continuation bit
_UNFINISHED: Final = bytes(range(0x80, 0x100))
#: bytes of the longest tag, and of the longest length of a field
_LONGEST_TAG: Final = 5
_LONGEST_VARINT: Final = 10
_MAX_UINT64: Final = (1 << 64) - 1


class _Field(NamedTuple):
    """Meaning of a tag, as far as counting needs it."""

    path: str
    #: for a message: its own fields by tag
    inside: Mapping[int, _Field] | None = None
    #: packed numbers, which are varints
    packed: bool = False


def too_many_error(what: str, most: int, got: object, remedy: str) -> LimitExceededError:
    """The error for a message with more than ``most`` of a field."""
    return LimitExceededError(
        f"{what} must be at most {most} in a message", expected=f"at most {most}", got=got, remedy=remedy
    )


class MessageReader(Generic[M]):
    """Parses messages of one type, and refuses those with too many elements before parsing.

    Args:
        message_type: of the messages.
        limits: by the path of a repeated field, as in ``outputs.segment_lens``: its largest number in a
            message, over all sub-messages.
        max_elements: limit on elements of any kind.
        remedy: of the error.
    """

    def __init__(
        self,
        message_type: type[M],
        limits: Mapping[str, int] | None = None,
        max_elements: int = SMALL_BYTES,
        remedy: str = "",
    ) -> None:
        self._parse: Callable[[bytes], M] = message_type.FromString
        self._limits = {"": max_elements, **(limits or {})}
        self._remedy = remedy
        self._fields = _fields_of(message_type.DESCRIPTOR, "")
        self._name = message_type.DESCRIPTOR.name

    def __call__(self, data: bytes) -> M:
        """Parse a message.

        Raises:
            LimitExceededError: a limit on elements is exceeded.
            InvalidInputError: ``data`` is not a message.
        """
        try:
            if len(data) > SMALL_BYTES:
                self.count(data)
            return self._parse(data)
        except DecodeError:
            raise InvalidInputError(
                "a message cannot be parsed", expected=f"the bytes of a {self._name}", got=data[:16].hex()
            ) from None

    def count(self, data: bytes) -> dict[str, int]:
        """The number of elements by path of each limited field, and of all elements under "".

        Raises:
            LimitExceededError: a limit is exceeded.
            DecodeError: ``data`` is not a message.
        """
        counts = dict.fromkeys(self._limits, 0)
        self._count(data, 0, len(data), self._fields, counts)
        return counts

    def _count(
        self, data: bytes, at: int, end: int, fields: Mapping[int, _Field], counts: dict[str, int]
    ) -> None:
        groups = 0  # nesting depth of groups of unknown fields, which are skipped
        while at < end:
            tag = data[at]
            at += 1
            if tag >= 0x80:
                tag, at = _varint(data, at - 1, end, _LONGEST_TAG)
            if tag >= 1 << 32 or (tag < 8 and not groups):  # field 0, which protobuf takes inside groups only
                raise DecodeError
            self._add("", 1, counts)
            field = None if groups else fields.get(tag)
            kind = tag & 7
            if kind == _BYTES:
                size, start = _varint(data, at, end, _LONGEST_TAG)
                at = start + size
                if at > end:
                    raise DecodeError
                if field is not None:
                    self._count_field(data, start, at, field, counts)
                continue
            groups += (kind == _GROUP) - (kind == _END_GROUP)
            at = _end_of_scalar(data, at, end, kind)
            if groups < 0 or at > end:
                raise DecodeError
            if field is not None:
                self._add(field.path, 1, counts)
        if groups:
            raise DecodeError

    def _count_field(self, data: bytes, at: int, end: int, field: _Field, counts: dict[str, int]) -> None:
        """Count a length-delimited field: a message, a string, or packed numbers."""
        if not field.packed:
            self._add(field.path, 1, counts)
            if field.inside is not None:
                self._count(data, at, end, field.inside, counts)
            return
        if at < end and data[end - 1] >= 0x80:
            raise DecodeError
        numbers = len(data[at:end].translate(None, _UNFINISHED))
        self._add(field.path, numbers, counts)
        self._add("", numbers, counts)

    def _add(self, path: str, more: int, counts: dict[str, int]) -> None:
        """Add ``more`` to the count of ``path``, if that is limited."""
        have = counts.get(path)
        if have is None:
            return
        counts[path] = have = have + more
        most = self._limits[path]
        if have > most:
            raise too_many_error(path or "elements", most, f"more than {most}", self._remedy)


def read_message_id(data: bytes) -> int:
    """The id of a stream message: field 1, if it comes first, as protobuf writes it; else 0."""
    if not data.startswith(b"\x08"):
        return 0
    try:
        return _varint(data, 1, len(data), _LONGEST_VARINT)[0] & _MAX_UINT64
    except DecodeError:
        return 0


def _fields_of(message: Any, prefix: str) -> dict[int, _Field]:
    """Messages and repeated fields of a message descriptor by tag. A repeated number has two tags.

    The protocol has no repeated numbers of fixed width.
    """
    found: dict[int, _Field] = {}
    for field in message.fields:
        path = f"{prefix}{field.name}"
        key = field.number << 3
        if field.message_type is not None:
            found[key | _BYTES] = _Field(path, _fields_of(field.message_type, f"{path}."))
        elif _is_repeated(field):
            number = field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
            if number:
                found[key | _VARINT] = _Field(path)
            found[key | _BYTES] = _Field(path, packed=number)
    return found


def _is_repeated(field: FieldDescriptor) -> bool:
    """Protobuf before 6.31 has only the label, which later versions deprecate."""
    any_version: Any = field
    if hasattr(any_version, "is_repeated"):
        return bool(any_version.is_repeated)
    return bool(any_version.label == any_version.LABEL_REPEATED)


def _end_of_scalar(data: bytes, at: int, end: int, kind: int) -> int:
    """End of the value after a tag, of any wire type but bytes."""
    if kind == _VARINT:
        return _varint(data, at, end, _LONGEST_VARINT)[1]
    try:
        return at + _SIZE_OF[kind]
    except KeyError:
        raise DecodeError from None


def _varint(data: bytes, at: int, end: int, longest: int) -> tuple[int, int]:
    """A varint and its end. Raises DecodeError if it exceeds ``end`` or ``longest`` bytes."""
    value = shift = 0
    last = min(end, at + longest)
    while at < last:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise DecodeError

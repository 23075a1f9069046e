"""One table maps errors to the wire, both ways; it has to be complete."""

from __future__ import annotations

import grpc
import pytest

from suffixsvc import errors, wire
from suffixsvc.errors import (
    AppendConflict,
    AppendGap,
    MissingExtraError,
    SuffixError,
    VocabularyMismatchError,
)
from suffixsvc.types import DraftSource
from suffixsvc.v1 import types_pb2
from suffixsvc.wire import STATUS


def error_classes() -> list[type[SuffixError]]:
    return [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, SuffixError)]


def make(cls: type[SuffixError]) -> SuffixError:
    if cls is AppendConflict:
        return AppendConflict(41, expected="token 1", got="token 2")
    if cls is AppendGap:
        return AppendGap(expected=7, got=9)
    if cls is MissingExtraError:
        return MissingExtraError("text", "tokenizers")
    return cls("it broke", expected="a", got="b", remedy="Mend it.")


def test_every_error_is_in_the_table() -> None:
    assert set(STATUS) == set(error_classes())


def test_the_tree_in_the_docstring_names_every_error() -> None:
    assert errors.__doc__ is not None
    for cls in error_classes():
        assert cls.__name__ in errors.__doc__, cls.__name__


def test_every_code_of_the_proto_is_that_of_an_error() -> None:
    assert {code for code, _ in STATUS.values()} | {0} == set(types_pb2.ErrorCode.values())


def test_draft_sources_are_those_of_the_proto() -> None:
    ours = {f"DRAFT_SOURCE_{source.name}": int(source) for source in DraftSource}
    assert ours == dict(types_pb2.DraftSource.items())


def test_every_status_exists() -> None:
    for _, status in STATUS.values():
        assert status in grpc.StatusCode.__members__


@pytest.mark.parametrize("cls", error_classes(), ids=lambda cls: cls.__name__)
def test_round_trip(cls: type[SuffixError]) -> None:
    error = make(cls)
    again = wire.error_from_detail(
        types_pb2.ErrorDetail.FromString(wire.detail_from_error(error).SerializeToString())
    )
    code = STATUS[cls][0]
    siblings = [other for other, (its, _) in STATUS.items() if its == code]
    if len(siblings) == 1:
        assert type(again) is cls
    else:  # a base class that is never raised itself shares the code of a subclass
        assert type(again) in siblings
    assert (again.message, str(again)) == (error.message, str(error))
    assert (str(again.expected), str(again.got)) == (str(error.expected), str(error.got))
    assert again.remedy == error.remedy


def test_positions_survive_the_wire() -> None:
    conflict = wire.error_from_detail(wire.detail_from_error(make(AppendConflict)))
    assert isinstance(conflict, AppendConflict)
    assert conflict.position == 41
    gap = wire.error_from_detail(wire.detail_from_error(make(AppendGap)))
    assert isinstance(gap, AppendGap)
    assert (gap.expected_position, gap.got_position) == (7, 9)


def test_subclasses_travel_as_their_nearest_class() -> None:
    class OwnError(VocabularyMismatchError):
        pass

    assert wire.status_of(OwnError("x")) == STATUS[VocabularyMismatchError]


def test_codes_of_a_newer_service_become_plain_errors() -> None:
    detail = types_pb2.ErrorDetail(message="from the future")
    detail.MergeFromString(b"\x08\xe7\x07")  # code = 999
    assert type(wire.error_from_detail(detail)) is SuffixError


def test_details_always_fit_into_trailing_metadata() -> None:
    error = SuffixError("m\ud800" * 5000, expected="e" * 9999, got="\udfff" * 9999, remedy="r" * 9999)
    assert wire.detail_from_error(error).ByteSize() < 8000

"""Live text of other processes' sessions in a copy."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from follower_testing import PATH, Feeder, array, draft_of, ngrams_of, rows

from suffixsvc import SuffixCache
from suffixsvc.errors import ProtocolError
from suffixsvc.types import NewOutput
from suffixsvc.v1 import watch_pb2 as pb
from suffixsvc.wire import pack_tokens
from suffixsvc_follower.contents.mirrors import LivePiece
from suffixsvc_follower.contents.namespace_copy import NamespaceCopy

CONTEXT, OUTPUT = list(range(200, 264)), list(range(300, 330))


def piece(
    at: int, context: list[int], output: list[int], *, ended: bool = False, name: str = "s"
) -> LivePiece:
    return LivePiece(name, at, array(context), array(output), ended)


@pytest.fixture
def copy() -> Iterator[NamespaceCopy]:
    copy = NamespaceCopy(PATH, mirror_limit_tokens=500)
    yield copy
    copy.mirrors.clear()
    assert copy.index.stats().tokens == copy.index.stats().session_tokens == copy.mirrors.tokens == 0
    copy.check()


def test_live_text_is_drafted_from_until_it_ends(copy: NamespaceCopy) -> None:
    copy.mirrors.apply([piece(0, CONTEXT, OUTPUT)])
    assert draft_of(copy, OUTPUT[:5], 4) == OUTPUT[5:9]
    assert draft_of(copy, CONTEXT[:5], 4) == [], "what its model did not write is never drafted"
    assert copy.stats().sessions == copy.stats().outputs == copy.stats().session_bytes == 0
    copy.mirrors.apply([piece(94, [], [], ended=True)])
    assert draft_of(copy, OUTPUT[:5], 4) == []
    assert copy.index.stats().tokens == 0


def test_text_grows_piece_by_piece_as_that_of_one_session(copy: NamespaceCopy) -> None:
    for at in range(0, 30, 7):
        copy.mirrors.apply([piece(64 + at, [], OUTPUT[at : at + 7]) if at else piece(0, CONTEXT, OUTPUT[:7])])
    whole = NamespaceCopy(PATH)
    whole.mirrors.apply([piece(0, CONTEXT, OUTPUT)])
    assert ngrams_of(copy, 20) == ngrams_of(whole, 20)
    assert copy.index.stats().tokens == whole.index.stats().tokens == 94


def test_repeated_pieces_are_skipped(copy: NamespaceCopy) -> None:
    pieces = [piece(0, CONTEXT, OUTPUT[:10]), piece(74, [], OUTPUT[10:])]
    copy.mirrors.apply(pieces)
    before = copy.index.stats().appended
    copy.mirrors.apply(pieces)
    copy.mirrors.apply([piece(60, CONTEXT[60:], OUTPUT[:20])])
    assert copy.index.stats().appended == before
    copy.mirrors.apply([piece(80, [], [*OUTPUT[16:], 7])])
    assert copy.index.stats().appended == before + 1
    assert draft_of(copy, OUTPUT[20:], 1) == [7]


def test_context_may_follow_a_gap(copy: NamespaceCopy) -> None:
    copy.mirrors.apply([piece(0, CONTEXT, OUTPUT), piece(500, CONTEXT[::-1], [7, 8, 9])])
    assert len(copy.mirrors) == 1
    assert draft_of(copy, OUTPUT[:5], 3) == OUTPUT[5:8]
    assert draft_of(copy, CONTEXT[20::-1], 3) == [7, 8, 9]


def test_output_behind_a_gap_does_not_follow_what_is_before_it(copy: NamespaceCopy) -> None:
    copy.mirrors.apply([piece(0, CONTEXT, OUTPUT[:10]), piece(80, [], OUTPUT[20:])])
    assert ngrams_of(copy, 2).keys() == set(pairwise(OUTPUT[20:]))
    copy.mirrors.apply([piece(90, [], [7])])
    assert draft_of(copy, OUTPUT[20:], 1) == [7]


def test_a_session_that_is_joined_in_the_middle(copy: NamespaceCopy) -> None:
    copy.mirrors.apply([piece(1000, [], OUTPUT)])
    assert draft_of(copy, OUTPUT[:5], 3) == OUTPUT[5:8]


def test_empty_pieces_and_unknown_sessions_do_nothing(copy: NamespaceCopy) -> None:
    copy.mirrors.apply(
        [piece(10, [], []), piece(0, [], [], ended=True), piece(3, CONTEXT, OUTPUT, ended=True)]
    )
    assert len(copy.mirrors) == 0


def test_a_reset_discards_all_live_text_first(copy: NamespaceCopy) -> None:
    copy.mirrors.apply([piece(0, [], OUTPUT, name="a"), piece(0, [], OUTPUT, name="b")])
    copy.mirrors.apply([piece(0, [], [1, 2, 3], name="a")], reset=True)
    assert len(copy.mirrors) == 1
    assert copy.index.stats().tokens == 3


def test_the_oldest_mirrors_are_dropped_over_the_limit(copy: NamespaceCopy) -> None:
    for name in "abcdef":
        copy.mirrors.apply([piece(0, CONTEXT, OUTPUT, name=name)])
    assert copy.mirrors.tokens <= 500
    assert (len(copy.mirrors), copy.mirrors.dropped) == (5, 1)
    copy.mirrors.apply([piece(94, [], [1] * 501, name="f")])
    assert copy.mirrors.tokens <= 500
    assert len(copy.mirrors) == 0, "one that is too long does not fit at all"
    copy.mirrors.apply([piece(595, [], [1, 2], name="f")])
    assert len(copy.mirrors) == 1, "its later text does"


def test_a_mirror_ends_when_its_output_is_in_the_log() -> None:
    """The output is inserted first: nothing can be drafted from neither."""
    with SuffixCache(background=False) as cache:
        copy = NamespaceCopy(PATH)
        namespace = cache.namespace(PATH)
        namespace.add_output([1, 2])
        feeder = Feeder(cache, copy)
        feeder.catch_up()
        copy.mirrors.apply(
            [piece(0, CONTEXT, OUTPUT, name="remote"), piece(0, CONTEXT, OUTPUT, name="other")]
        )
        output = NewOutput(PATH, array(OUTPUT), (30,), array(CONTEXT), session_id="remote")
        namespace.add_outputs([output])
        mirrors: list[int] = []
        insert = copy.insert

        def watched(output: NewOutput) -> int:
            mirrors.append(len(copy.mirrors))
            return insert(output)

        copy.insert = watched  # type: ignore[method-assign]
        feeder.catch_up()
        assert mirrors == [2]
        assert len(copy.mirrors) == 1
        assert copy.index.stats().tokens == 2 + 2 * 94
        feeder.load()
        assert len(copy.mirrors) == 0, "contents replace live text"
        assert copy.outputs() == {stored.output_id for stored in rows(cache)}


def test_pieces_come_over_the_wire() -> None:
    message = pb.LivePiece(session_id="s", at=5, context=pack_tokens(array([1])), output=b"", ended=True)
    found = LivePiece.from_proto(message)
    assert (found.session_id, found.at, found.context.tolist(), found.output.tolist(), found.ended) == (
        ("s", 5, [1], [], True)
    )
    with pytest.raises(ProtocolError):
        LivePiece.from_proto(pb.LivePiece(session_id="s", context=b"123"))

"""Incremental detokenization, against detokenizing the whole text at the end."""

from __future__ import annotations

import random

import pytest

from suffixsvc.errors import InvalidConfigError
from suffixsvc_driver.decode.detokenize_stream import DetokenizeStream, Piece, StopStrings
from support.long_form import rounds

#: tokens that split characters and stop strings
TOKENS = [b"a", b"b", b"ab", b"\xc3", b"\xa9", b"\xc3\xa9", b"\xe2\x82", b"\xac", b"", b"\n", b"ba\n"]
END = len(TOKENS)


def spell(token: int) -> bytes:
    return b"<end>" if token == END else TOKENS[token]


def by_hand(token_ids: list[int], stops: list[str]) -> tuple[str, str]:
    """Return the text before the first stop string, and that string, from all bytes at once."""
    whole = b"".join(spell(token) for token in token_ids if token != END)
    places = [(whole.find(stop.encode()), -len(stop.encode()), stop) for stop in stops]
    found = min((place for place in places if place[0] >= 0), default=None)
    if found is not None:
        whole = whole[: found[0]]
    return whole.decode("utf-8", "replace"), "" if found is None else found[2]


@pytest.mark.parametrize("seed", range(rounds(20, full=60)))
def test_pieces_add_up_without_any_part_of_a_stop_string(seed: int) -> None:
    rng = random.Random(seed)
    stops = [rng.choice(["a", "ba", "abab", "é", "€\n", "\nb"]) for _ in range(rng.randrange(3))]
    rule, written = StopStrings(stops, spell), DetokenizeStream(spell, {END}, stops)
    ids: list[int] = []
    pieces: list[Piece] = []
    stopped = False
    while not stopped and len(ids) < 30:
        step = [rng.randrange(len(TOKENS)) for _ in range(rng.randrange(1, 5))]
        for i, token in enumerate(step):  # as a target does: no token after a stop
            stopped = rule([*ids, *step[: i + 1]])
            if stopped:
                step = step[: i + 1]
                break
            assert token != END
        ids += step
        pieces += written.add(step, [len(ids) % 3] * len(step))
        shown = "".join(piece.text for piece in pieces)
        assert not any(stop in shown for stop in stops), seed
    ids.append(END)
    pieces += written.add([END], [0]) + written.finish()
    text, stop = by_hand(ids, stops)
    assert written.text == "".join(piece.text for piece in pieces) == text, seed
    assert written.stopped_at == stop, seed
    assert stopped == bool(stop), seed


def test_text_is_returned_as_soon_as_it_is_decided() -> None:
    written = DetokenizeStream(spell, (), ["abab"])
    assert written.add([0, 0], [1, 1]) == [Piece("a", 1)], "the last a may begin the stop text"
    assert written.add([4], [2]) == [Piece("a", 1), Piece("\ufffd", 2)]
    assert written.add([3], [5]) == []
    assert written.add([4], [2]) == [Piece("é", 2)], "a character belongs to its last token"
    assert written.add([3], [5]) == []
    assert written.finish() == [Piece("\ufffd", 5)]


def test_a_stop_rule_can_be_reused() -> None:
    rule = StopStrings(["ab"], spell)
    assert not rule([0])
    assert rule([0, 1])
    assert not rule([1]), "another generation: the a before it was in the last one"
    assert rule([1, 0, 1])
    assert not StopStrings([], spell)([0, 1, 2])
    with pytest.raises(InvalidConfigError, match="at least one character"):
        StopStrings(["x", ""], spell)

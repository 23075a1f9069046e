"""Text out of tokens while they are written, held against doing it all at the end."""

from __future__ import annotations

import random

import pytest
from suffixsvc_driver.written_text import Piece, StopTexts, WrittenText

from suffixsvc.errors import InvalidConfigError

#: tokens that cut characters and stop texts in two
TOKENS = [b"a", b"b", b"ab", b"\xc3", b"\xa9", b"\xc3\xa9", b"\xe2\x82", b"\xac", b"", b"\n", b"ba\n"]
END = len(TOKENS)


def spell(token: int) -> bytes:
    return b"<end>" if token == END else TOKENS[token]


def by_hand(token_ids: list[int], stops: list[str]) -> tuple[str, str]:
    """The text before the first stop text, and that; all bytes at once."""
    whole = b"".join(spell(token) for token in token_ids if token != END)
    places = [(whole.find(stop.encode()), -len(stop.encode()), stop) for stop in stops]
    found = min((place for place in places if place[0] >= 0), default=None)
    if found is not None:
        whole = whole[: found[0]]
    return whole.decode("utf-8", "replace"), "" if found is None else found[2]


@pytest.mark.parametrize("seed", range(60))
def test_pieces_add_up_and_nobody_sees_a_stop_text(seed: int) -> None:
    rng = random.Random(seed)
    stops = [rng.choice(["a", "ba", "abab", "é", "€\n", "\nb"]) for _ in range(rng.randrange(3))]
    rule, written = StopTexts(stops, spell), WrittenText(spell, {END}, stops)
    ids: list[int] = []
    pieces: list[Piece] = []
    stopped = False
    while not stopped and len(ids) < 30:
        step = [rng.randrange(len(TOKENS)) for _ in range(rng.randrange(1, 5))]
        for i, token in enumerate(step):  # as a target does: nothing is written behind a stop
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


def test_text_comes_as_soon_as_it_can() -> None:
    written = WrittenText(spell, (), ["abab"])
    assert written.add([0, 0], [1, 1]) == [Piece("a", 1)], "the last a may begin the stop text"
    assert written.add([4], [2]) == [Piece("a", 1), Piece("\ufffd", 2)]
    assert written.add([3], [5]) == []
    assert written.add([4], [2]) == [Piece("é", 2)], "a character belongs to its last token"
    assert written.add([3], [5]) == []
    assert written.finish() == [Piece("\ufffd", 5)]


def test_a_rule_can_be_used_again() -> None:
    rule = StopTexts(["ab"], spell)
    assert not rule([0])
    assert rule([0, 1])
    assert not rule([1]), "another generation: the a before it was in the last one"
    assert rule([1, 0, 1])
    assert not StopTexts([], spell)([0, 1, 2])
    with pytest.raises(InvalidConfigError, match="at least one character"):
        StopTexts(["x", ""], spell)

"""The client's parts that know no network: settings, breaker, journal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from suffixsvc_client import ClientConfig, SuffixClient
from suffixsvc_client import journal as journal_module
from suffixsvc_client.breaker import Breaker
from suffixsvc_client.journal import Journal

from suffixsvc.errors import AppendConflict, AppendGap, InvalidConfigError


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "1", None, True])
def test_settings_that_make_no_sense(value: object) -> None:
    with pytest.raises(InvalidConfigError, match="step_timeout_s"):
        ClientConfig(step_timeout_s=value)  # type: ignore[arg-type] - what the test is about


@pytest.mark.parametrize(
    "target", ["", "unix:", "nowhere", "host:", ":80", "host:0", "host:99999", "host:" + "1" * 5000]
)
def test_targets_that_are_none(target: str) -> None:
    with pytest.raises(InvalidConfigError):
        SuffixClient(target)


class TestBreaker:
    def test_opens_after_failures_in_a_row(self) -> None:
        breaker = Breaker(3, 1.0, 8.0)
        for _ in range(2):
            breaker.failed(0)
        breaker.succeeded()
        for _ in range(2):
            breaker.failed(0)
            assert breaker.allows(0)
        breaker.failed(0)
        assert not breaker.allows(0.9)

    def test_lets_one_probe_through_per_pause(self) -> None:
        breaker = Breaker(1, 1.0, 8.0)
        breaker.failed(0)
        assert [breaker.allows(t) for t in (0.5, 1.0, 1.1, 1.9, 2.0)] == [False, True, False, False, True]

    def test_a_probe_that_succeeds_closes_it(self) -> None:
        breaker = Breaker(1, 1.0, 8.0)
        breaker.failed(0)
        assert breaker.allows(1)
        breaker.succeeded()
        assert not breaker.open
        assert breaker.allows(1)

    def test_pauses_double_up_to_a_limit_and_start_again(self) -> None:
        breaker = Breaker(1, 1.0, 4.0)
        now, pauses = 0.0, []
        breaker.failed(now)
        for _ in range(4):
            start = now
            while not breaker.allows(now):
                now += 0.5
            pauses.append(now - start)
            breaker.failed(now)
        assert pauses == [1, 2, 4, 4]
        breaker.succeeded()
        breaker.failed(now)
        assert breaker.allows(now + 1)


def array(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


class TestJournal:
    @given(
        st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 9), max_size=6)), max_size=12), st.data()
    )
    def test_pieces_are_the_tokens_with_their_kinds(
        self, appends: list[tuple[bool, list[int]]], data: st.DataObject
    ) -> None:
        """Against the simplest journal there is: a list of (token, kind)."""
        prompt = data.draw(st.lists(st.integers(0, 9), max_size=5))
        journal, simple = Journal(array(*prompt)), [(token, False) for token in prompt]
        for output, tokens in appends:
            journal.append(array(*tokens), output=output)
            simple += [(token, output) for token in tokens]
        assert len(journal) == len(simple)
        assert journal.prompt.tolist() == prompt
        assert journal.has_output == any(output for _, output in simple)
        start = data.draw(st.integers(0, len(simple)))
        end = data.draw(st.integers(start, len(simple)))
        pieces = list(journal.pieces(start, end))
        got = [(int(token), piece.output) for piece in pieces for token in piece.tokens]
        assert got == simple[start:end]
        assert [piece.at for piece in pieces] == [start, *(piece.end for piece in pieces[:-1])][: len(pieces)]

    def test_long_runs_come_in_chunks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(journal_module, "CHUNK_TOKENS", 4)
        journal = Journal(array(*range(3)))
        journal.append(array(*range(10)), output=True)
        assert [len(piece.tokens) for piece in journal.pieces(3, 13)] == [4, 4, 2]

    def test_placing(self) -> None:
        journal = Journal(array(1, 2, 3))
        assert journal.new_part(array(2, 3, 4), 1).tolist() == [4]
        assert journal.new_part(array(2), 1).tolist() == []
        assert journal.new_part(array(4), None).tolist() == [4]
        with pytest.raises(AppendConflict) as conflict:
            journal.new_part(array(2, 9), 1)
        assert conflict.value.position == 2
        with pytest.raises(AppendGap):
            journal.new_part(array(5), 4)

    @pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64])
    def test_positions_of_any_integer_type(self, kind: type[np.integer]) -> None:
        journal = Journal(array(*range(400)))
        assert journal.new_part(array(*range(100, 420)), kind(100)).tolist() == list(range(400, 420))
        with pytest.raises(AppendConflict) as conflict:
            journal.new_part(array(*range(100, 300), 9), kind(100))
        assert conflict.value.position == 300

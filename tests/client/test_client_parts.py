"""Parts of the client without I/O: configuration, circuit breaker, token log."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixsvc.errors import AppendConflict, AppendGap, InvalidConfigError
from suffixsvc_client import ClientConfig, SuffixClient
from suffixsvc_client.protocol import token_log as token_log_module
from suffixsvc_client.protocol.breaker import CircuitBreaker
from suffixsvc_client.protocol.rate_pause import RatePause
from suffixsvc_client.protocol.token_log import TokenLog


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "1", None, True])
def test_invalid_settings(value: object) -> None:
    with pytest.raises(InvalidConfigError, match="step_timeout_s"):
        ClientConfig(step_timeout_s=value)  # type: ignore[arg-type]  # under test


@pytest.mark.parametrize(
    "target", ["", "unix:", "nowhere", "host:", ":80", "host:0", "host:99999", "host:" + "1" * 5000]
)
def test_invalid_targets(target: str) -> None:
    with pytest.raises(InvalidConfigError):
        SuffixClient(target)


class TestBreaker:
    def test_opens_after_failures_in_a_row(self) -> None:
        breaker = CircuitBreaker(3, 1.0, 8.0)
        for _ in range(2):
            breaker.on_failure(0)
        breaker.on_success()
        for _ in range(2):
            breaker.on_failure(0)
            assert breaker.allows(0)
        breaker.on_failure(0)
        assert not breaker.allows(0.9)

    def test_one_probe_per_pause_is_allowed(self) -> None:
        breaker = CircuitBreaker(1, 1.0, 8.0)
        breaker.on_failure(0)
        assert [breaker.allows(t) for t in (0.5, 1.0, 1.1, 1.9, 2.0)] == [False, True, False, False, True]

    def test_a_probe_that_succeeds_closes_it(self) -> None:
        breaker = CircuitBreaker(1, 1.0, 8.0)
        breaker.on_failure(0)
        assert breaker.allows(1)
        breaker.on_success()
        assert not breaker.open
        assert breaker.allows(1)

    def test_pauses_double_up_to_a_limit_and_start_again(self) -> None:
        breaker = CircuitBreaker(1, 1.0, 4.0)
        now, pauses = 0.0, []
        breaker.on_failure(now)
        for _ in range(4):
            start = now
            while not breaker.allows(now):
                now += 0.5
            pauses.append(now - start)
            breaker.on_failure(now)
        assert pauses == [1, 2, 4, 4]
        breaker.on_success()
        breaker.on_failure(now)
        assert breaker.allows(now + 1)

    def test_pauses_are_short_while_the_service_may_be_restarting(self) -> None:
        """Also after timeouts: a service that has just begun to listen can answer late."""
        breaker = CircuitBreaker(1, 0.25, 64.0)
        now = 0.0
        for _ in range(10):
            breaker.on_failure(now)
        assert not breaker.allows(now + 59)
        breaker.on_failure(now, waited=False)
        for _ in range(10):
            now += 1.0
            assert breaker.allows(now)
            breaker.on_failure(now)
        now += 30.0
        for _ in range(10):
            breaker.on_failure(now)
        assert not breaker.allows(now + 59)

    def test_a_first_pause_that_is_longer_is_kept(self) -> None:
        breaker = CircuitBreaker(1, 5.0, 8.0)
        for _ in range(3):
            breaker.on_failure(0.0, waited=False)
        assert not breaker.allows(4.9)
        assert breaker.allows(5.0)


class TestRatePause:
    def test_nothing_is_sent_before_the_time_and_then_one_message_until_it_is_admitted(self) -> None:
        pause = RatePause(8.0)
        assert pause.allows(0.0)
        pause.on_refusal(10.0, 0.5)
        assert [pause.allows(t) for t in (10.0, 10.4, 10.5, 10.6, 10.9, 11.0)] == [
            *(False, False, True, False, False, True)
        ]
        pause.on_admitted(11.1)
        assert pause.allows(11.1)
        assert not pause.active

    def test_an_answer_to_an_earlier_message_does_not_end_it(self) -> None:
        pause = RatePause(8.0)
        pause.on_refusal(10.0, 0.5)
        pause.on_admitted(10.2)
        assert pause.lasts(10.2)
        pause.on_refusal(10.3, 0.1)  # an earlier message, too: the longer time holds
        assert pause.lasts(10.45)

    def test_it_has_a_longest_time(self) -> None:
        pause = RatePause(8.0)
        pause.on_refusal(0.0, 1e9)
        assert not pause.allows(7.9)
        assert pause.allows(8.0)

    def test_messages_that_can_wait_do_so_until_the_rate_has_its_second_again(self) -> None:
        pause = RatePause(8.0)
        assert pause.allows_early(0.0)
        pause.on_refusal(10.0, 0.5)
        pause.on_admitted(10.6)
        assert not pause.allows_early(11.4)
        assert pause.allows_early(11.5)

    def test_an_episode_ends_a_minute_after_its_last_refusal(self) -> None:
        pause = RatePause(8.0)
        times = (0.0, 1.0, 50.0, 109.0, 169.0, 170.0)
        assert [pause.begins_episode(t) for t in times] == [True, False, False, False, True, False]


def array(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


class TestTokenLog:
    @given(
        st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 9), max_size=6)), max_size=12), st.data()
    )
    def test_pieces_are_the_tokens_with_their_kinds(
        self, appends: list[tuple[bool, list[int]]], data: st.DataObject
    ) -> None:
        """Compared with a trivial log: a list of (token, kind)."""
        prompt = data.draw(st.lists(st.integers(0, 9), max_size=5))
        token_log, simple = TokenLog(array(*prompt)), [(token, False) for token in prompt]
        for output, tokens in appends:
            token_log.append(array(*tokens), output=output)
            simple += [(token, output) for token in tokens]
        assert len(token_log) == len(simple)
        assert token_log.prompt.tolist() == prompt
        assert token_log.has_output == any(output for _, output in simple)
        start = data.draw(st.integers(0, len(simple)))
        end = data.draw(st.integers(start, len(simple)))
        pieces = list(token_log.pieces(start, end))
        got = [(int(token), piece.output) for piece in pieces for token in piece.tokens]
        assert got == simple[start:end]
        ends = [piece.at + len(piece.tokens) for piece in pieces]
        assert [piece.at for piece in pieces] == [start, *ends][: len(pieces)]

    def test_long_runs_are_split(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(token_log_module, "CHUNK_TOKENS", 4)
        token_log = TokenLog(array(*range(3)))
        token_log.append(array(*range(10)), output=True)
        assert [len(piece.tokens) for piece in token_log.pieces(3, 13)] == [4, 4, 2]

    def test_positions(self) -> None:
        token_log = TokenLog(array(1, 2, 3))
        assert token_log.new_part(array(2, 3, 4), 1).tolist() == [4]
        assert token_log.new_part(array(2), 1).tolist() == []
        assert token_log.new_part(array(4), None).tolist() == [4]
        with pytest.raises(AppendConflict) as conflict:
            token_log.new_part(array(2, 9), 1)
        assert conflict.value.position == 2
        with pytest.raises(AppendGap):
            token_log.new_part(array(5), 4)

    @pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64])
    def test_positions_of_any_integer_type(self, kind: type[np.integer]) -> None:
        token_log = TokenLog(array(*range(400)))
        assert token_log.new_part(array(*range(100, 420)), kind(100)).tolist() == list(range(400, 420))
        with pytest.raises(AppendConflict) as conflict:
            token_log.new_part(array(*range(100, 300), 9), kind(100))
        assert conflict.value.position == 300

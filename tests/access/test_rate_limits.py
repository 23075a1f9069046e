"""Limits of principals: token buckets against an oracle, and what a real service answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixsvc import SuffixCache
from suffixsvc.access.control import AccessControl
from suffixsvc.access.policy_file import read_policy_file
from suffixsvc.access.rate_limits import PrincipalLimits, RateLimiter
from suffixsvc.errors import InvalidConfigError, LimitExceededError
from support.access import ControlledService

RATES = st.sampled_from([0.5, 1.0, 3.0, 100.0])
EVENTS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 16), st.integers(0, 50_000)), min_size=1, max_size=60
)


@given(RATES, RATES, EVENTS)
def test_no_principal_sends_more_than_its_rate_and_every_one_sends_as_much(
    requests: float, tokens: float, events: list[tuple[str, int, int]]
) -> None:
    """Over every span of time at most rate * span + one second's worth + one message is admitted; a message
    that is refused is admitted after ``retry_after_s``; principals do not count for each other."""
    now = [0.0]
    limiter = RateLimiter(lambda: now[0])
    alone = {name: RateLimiter(lambda: now[0]) for name in "ab"}
    limits = PrincipalLimits(requests_per_second=requests, tokens_per_second=tokens)
    admitted: dict[str, list[tuple[float, float]]] = {"a": [], "b": []}
    for name, sixteenths, size in events:
        now[0] += sixteenths / 16
        outcome = []
        for each in (limiter, alone[name]):
            try:
                each.admit(name, limits, size)
                outcome.append(None)
            except LimitExceededError as error:
                outcome.append(error.retry_after_s)
        assert outcome[0] == outcome[1]
        if outcome[0] is None:
            admitted[name].append((now[0], size / 4))
        else:
            wait = outcome[0]
            assert wait > 0
            before = dict(limiter._buckets)
            now[0] += wait
            limiter.admit(name, limits, size)
            now[0] -= wait
            limiter._buckets = before
    for times in admitted.values():
        for first, (begin, _) in enumerate(times):
            for last in range(first, len(times)):
                span = times[last][0] - begin
                assert last - first <= requests * span + max(requests, 1.0) + 1e-6
                before_last = sum(amount for _, amount in times[first:last])
                assert before_last <= tokens * span + max(tokens, 1.0) + max(a for _, a in times) + 1e-6


def test_a_message_over_the_size_is_refused_and_not_counted() -> None:
    limiter = RateLimiter(lambda: 0.0)
    limits = PrincipalLimits(requests_per_second=1, max_message_bytes=10)
    with pytest.raises(LimitExceededError, match="must be smaller") as raised:
        limiter.admit("a", limits, 11)
    assert raised.value.retry_after_s is None
    limiter.admit("a", limits, 10)
    with pytest.raises(LimitExceededError, match="per second"):
        limiter.admit("a", limits, 10)


@pytest.mark.parametrize("value", ["0", "-1", "true", '"x"', "inf"])
def test_invalid_limits_are_refused(tmp_path: Path, value: str) -> None:
    file = tmp_path / "policies.toml"
    file.write_text(f"[principals.a]\nrequests_per_second = {value}\n")
    with pytest.raises(InvalidConfigError, match="requests_per_second"):
        read_policy_file(file)


def test_limits_are_inherited_from_every_principal(tmp_path: Path) -> None:
    file = tmp_path / "policies.toml"
    file.write_text(
        '[principals."*"]\nmax_sessions = 5\nmax_message_bytes = "1 KiB"\n[principals.a]\nmax_sessions = 9\n'
    )
    access = AccessControl(policy=file)
    assert access.limits("a") == PrincipalLimits(max_sessions=9, max_message_bytes=1024)
    assert access.limits("other") == PrincipalLimits(max_sessions=5, max_message_bytes=1024)
    assert access.limits("") == PrincipalLimits()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ControlledService]:
    with SuffixCache() as cache, ControlledService(tmp_path, ("alice", "bob")).run(cache) as service:
        yield service


def test_sessions_of_a_principal_are_limited(service: ControlledService) -> None:
    service.set_policy("[principals.alice]\nmax_sessions = 2\n")
    with service.client("alice") as alice, service.client("bob") as bob:
        held = [alice.namespace("alice/a").open_session([1]) for _ in range(2)]
        with pytest.raises(LimitExceededError, match="live sessions of the principal 'alice'"):
            alice.namespace("alice/a").open_session([1])
        others = [bob.namespace("bob/b").open_session([1]) for _ in range(4)]
        held[0].close(commit=False)
        held[0] = alice.namespace("alice/a").open_session([1])
        for each in (*held, *others):
            each.close(commit=False)
        assert sum(service.server.handlers.sessions.table._live.values()) == 0


def test_a_rate_is_answered_with_the_time_to_come_back(service: ControlledService) -> None:
    # a rate that no test waits for: what is refused stays refused
    service.set_policy("[principals.alice]\nrequests_per_second = 0.001\n")
    with service.client("alice") as alice, service.client("bob") as bob:
        alice.namespaces()
        with pytest.raises(LimitExceededError, match="requests of the principal 'alice'") as raised:
            alice.namespaces()
        assert raised.value.retry_after_s is not None
        assert 900 < raised.value.retry_after_s <= 1002
        bob.namespaces()
        service.set_policy("[principals.bob]\nrequests_per_second = 0.001\n")
        alice.namespaces()


def test_a_step_over_the_rate_is_an_empty_draft_and_loses_no_token(service: ControlledService) -> None:
    text = list(range(100, 140))
    with service.client("alice") as alice:
        alice.namespace("alice/a").add_output(text)
        session = alice.namespace("alice/a").open_session([1])
        assert len(session.step(text[:3]).token_ids)
        service.set_policy("[principals.alice]\ntokens_per_second = 0.001\n")
        session.step(text[3:4])  # takes what the bucket holds
        for token in text[4:8]:
            assert not len(session.step([token]).token_ids)
        service.set_policy("[principals]\n")
        drafted = session.step(text[8:9]).token_ids.tolist()
        assert drafted in ([], text[9 : 9 + len(drafted)])
        output = session.close()
        rows = {row.output_id: row.output.token_ids.tolist() for row in service.cache._parts.store.scan()}
        assert output is not None
        assert rows[output] == text[:9]


def test_a_close_over_the_rate_waits_until_it_is_permitted(service: ControlledService) -> None:
    text = list(range(100, 140))
    with service.client("alice") as alice:
        session = alice.namespace("alice/a").open_session([1])
        service.set_policy("[principals.alice]\nrequests_per_second = 2\n")
        for token in text:
            session.step([token])  # most of them are refused
        output = session.close()
        rows = {row.output_id: row.output.token_ids.tolist() for row in service.cache._parts.store.scan()}
        assert output is not None
        assert rows[output] == text
        assert alice.counts.empty

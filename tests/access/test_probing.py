"""Principals that guess contexts and never append what is drafted; and others, whose drafts seldom match."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from suffixsvc import NewOutput, SuffixCache, wire
from suffixsvc.access.caller import Caller
from suffixsvc.access.policy_file import read_policy_file
from suffixsvc.access.rate_limits import MAX_UNMATCHED_TOKENS
from suffixsvc.errors import InvalidConfigError, LimitExceededError
from suffixsvc.service.metrics.collector import service_registry
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.values import as_token_array
from suffixsvc_client import SuffixClient
from suffixsvc_client.protocol.counters import EmptyReason
from support.access import ControlledService
from support.command_line import run_verb
from support.stored import stored_outputs

PATH = "acme/sql"
RNG = np.random.default_rng(3)
TEXTS = [RNG.integers(100, 20_000, 30).tolist() for _ in range(600)]
POLICY = '[principals."*"]\nread = ["acme"]\nwrite = ["acme"]\n'


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ControlledService]:
    with SuffixCache(tmp_path / "data") as cache:
        empty = as_token_array([])
        for _ in range(2):
            cache.namespace(PATH).add_outputs(
                [NewOutput(PATH, as_token_array(text), (len(text),), empty) for text in TEXTS]
            )
        with ControlledService(tmp_path, ("prober", "alice"), POLICY).run(cache) as service:
            yield service


def caller_of(service: ControlledService, principal: str) -> Caller:
    from suffixsvc.access.control import Peer

    return service.access.authenticate(service.tokens[principal], (), Peer.LOOPBACK)


def probe(service: ControlledService, caller: Caller, number: int, how: str) -> int:
    """One guess; the number of drafted tokens. LimitExceededError: it is refused."""
    handlers = service.server.handlers
    text = TEXTS[number % len(TEXTS)]
    guess = text[:10]
    name = f"s{number if how != 'context' else 0}"
    if how != "context" or number == 0:
        handlers.open_session(
            pb.OpenSessionRequest(
                session_id=name, namespace=PATH, prompt_token_ids=wire.pack_tokens(as_token_array(guess))
            ),
            caller,
        )
    else:
        handlers.append_context(
            pb.AppendContextRequest(session_id=name, token_ids=wire.pack_tokens(as_token_array(guess))),
            caller,
        )
    new = [3] if how == "mismatch" else []
    try:
        request = pb.StepRequest(session_id=name, max_draft_tokens=8)
        reply = handlers.step(request, caller)
        drafted = len(reply.draft.token_ids) // 4
        if new:  # appends something else than what was drafted
            handlers.step(
                pb.StepRequest(session_id=name, new_token_ids=wire.pack_tokens(as_token_array(new))), caller
            )
    finally:
        if how != "context":
            handlers.close_session(pb.CloseSessionRequest(session_id=name, discard=True), caller)
    return drafted


@pytest.mark.parametrize("how", ["new session", "context"])
def test_a_prober_is_counted_reported_and_slowed(service: ControlledService, how: str) -> None:
    caller = caller_of(service, "prober")
    drafted = 0
    refusal: LimitExceededError | None = None
    for number in range(len(TEXTS)):
        try:
            drafted += probe(service, caller, number, how) > 0
        except LimitExceededError as error:
            refusal = error
            break
    assert refusal is not None
    assert "about as often as the drafts predict" in refusal.message
    assert float(str(refusal.got)) > MAX_UNMATCHED_TOKENS  # figures, not words
    assert f"{MAX_UNMATCHED_TOKENS:g}" in str(refusal.expected)
    assert refusal.retry_after_s is not None
    assert 0 < refusal.retry_after_s < 600
    [found] = service.server.handlers.sessions.probes.stats()
    assert found.principal == "prober"
    assert found.drafts == drafted
    assert MAX_UNMATCHED_TOKENS < found.unanswered_tokens <= MAX_UNMATCHED_TOKENS + 8 * 3
    assert found.matched_tokens == 0
    assert found.refused_steps == 1

    with capture_logs() as logs:
        service.server.handlers.sessions.probes.report()
        service.server.handlers.sessions.probes.report()
    [line] = [each for each in logs if "probing" in each["event"]]
    assert (line["principal"], line["refused_steps"], line["log_level"]) == ("prober", 1, "warning")
    assert line["unanswered_tokens"] == found.unanswered_tokens

    # others are not concerned, nor is the operator
    alice = caller_of(service, "alice")
    assert all(probe(service, alice, number, "new session") for number in range(8))
    reply = service.server.handlers.get_stats(pb.GetStatsRequest(), _operator())
    assert {each.principal: each.refused_steps for each in reply.probes} == {"prober": 1, "alice": 0}
    registry = service_registry(service.cache, service.server.handlers)
    assert registry.get_sample_value("suffixsvc_principal_refused_steps_total", {"principal": "prober"}) == 1
    # a higher limit holds at once
    service.set_policy(POLICY + '[principals."prober"]\nmax_unmatched_tokens = 1e6\n')
    assert probe(service, caller, len(TEXTS) - 1, how) > 0


def test_a_prober_that_appends_other_tokens_is_soon_offered_nothing(service: ControlledService) -> None:
    """What it appends calibrates its drafts: they are not worth their cost any more. Others get theirs."""
    caller = caller_of(service, "prober")
    drafted = [probe(service, caller, number, "mismatch") > 0 for number in range(len(TEXTS))]
    assert sum(drafted) < 150
    assert not any(drafted[-100:])
    [found] = service.server.handlers.sessions.probes.stats()
    assert found.drafts == sum(drafted)
    assert found.matched_tokens == 0
    alice = caller_of(service, "alice")
    assert all(probe(service, alice, number, "new session") for number in range(8))


def _operator() -> Caller:
    from suffixsvc.access.caller import OPERATOR_CALLER

    return OPERATOR_CALLER


def _own_text(client: SuffixClient, turn: int) -> None:
    """Three drafts of one token of a text of its own, each appended."""
    own = list(range(30_000, 30_060))
    namespace = client.namespace("prober/own")
    if turn == 0:
        namespace.add_output(own)
        namespace.add_output(own)
    with contextlib.closing(namespace.open_session(own[:10], private=True)) as session:
        for at in range(10, 14):
            session.step(own[at - 1 : at] if at > 10 else [], 1, 0.0)
        session.step(own[13:14], 0)


@pytest.mark.parametrize("pattern", ["own text", "each first token", "every fifth", "one session"])
def test_what_a_prober_appends_pays_for_as_much(service: ControlledService, pattern: str) -> None:
    """Over the wire: what is disclosed of the text of others is about what was appended, and the limit."""
    appended = disclosed = refused = 0
    with service.client("prober") as client:
        namespace = client.namespace(PATH)
        walked = namespace.open_session([1], private=True)
        for turn in range(len(TEXTS)):
            if pattern == "own text" and turn % 3 == 0:
                _own_text(client, turn)
            guess, truth = TEXTS[turn][:10], TEXTS[turn][10:]
            if pattern == "one session":
                session = walked
                session.append_context(guess)
            else:
                session = namespace.open_session(guess, private=True)
            draft = session.step([], 16, 0.0).token_ids.tolist()
            disclosed += sum(a == b for a, b in zip(draft, truth, strict=False))
            if draft and (pattern == "each first token" or (pattern == "every fifth" and turn % 5 == 0)):
                session.step(draft[:1], 0)
                appended += 1
            if session is not walked:
                session.close(commit=False)
            refused = client.counts.empty.get(EmptyReason.LIMITED, 0)
            if refused > 20:
                break
        walked.close(commit=False)
    assert refused > 20
    assert disclosed > MAX_UNMATCHED_TOKENS / 2  # it was offered drafts until then
    assert disclosed <= 1.3 * MAX_UNMATCHED_TOKENS + 3 * appended


def test_drafts_of_one_position_that_others_change_are_charged(service: ControlledService) -> None:
    """A session stays where it is; another of the prober, which is not metered, changes what is drafted."""
    context = [25_001, 25_002]
    disclosed = refused = 0
    with service.client("prober") as client:
        namespace = client.namespace("prober/x")
        session = namespace.open_session(context, reads=[PATH], private=True)
        for text in TEXTS:
            guess, truth = text[:6], text[6:]
            steering = namespace.open_session([1], output_token_ids=[*context, *guess])
            tokens = session.step([], 32, 0.0).token_ids.tolist()
            steering.close(commit=False)
            if tokens[: len(guess)] == guess:
                disclosed += sum(a == b for a, b in zip(tokens[len(guess) :], truth, strict=False))
            refused = client.counts.empty.get(EmptyReason.LIMITED, 0)
            if refused > 20:
                break
        session.close(commit=False)
    assert refused > 20
    assert MAX_UNMATCHED_TOKENS / 4 < disclosed <= 1.3 * MAX_UNMATCHED_TOKENS


def test_a_caller_that_may_copy_the_text_is_not_metered(service: ControlledService) -> None:
    service.set_policy(POLICY + '[principals."prober"]\nfollow = ["acme"]\n')
    caller = caller_of(service, "prober")
    assert all(probe(service, caller, number, "new session") for number in range(100))
    assert service.server.handlers.sessions.probes.stats() == []


def test_the_operator_is_not_metered(service: ControlledService) -> None:
    for number in range(300):
        probe(service, _operator(), number, "new session")
    assert service.server.handlers.sessions.probes.stats() == []


def test_a_refused_step_is_an_empty_draft_and_loses_no_token(service: ControlledService) -> None:
    text = TEXTS[0]
    with service.client("alice") as client:
        session = client.namespace(PATH).open_session(text[:8])
        assert len(session.step(text[8:9]))
        service.set_policy(POLICY + '[principals."alice"]\nmax_unmatched_tokens = 1e-9\n')
        for token in text[10:14]:
            session.step([7777])  # no match
            assert not len(session.step([token]))
        assert client.counts.empty.get(EmptyReason.LIMITED, 0) >= 7
        service.set_policy(POLICY)
        session.step([7778])
        output_id = session.close()
    found = {each.output_id: each.output.token_ids.tolist() for each in stored_outputs(service.cache, PATH)}
    wrote = found[output_id]
    assert wrote[-1] == 7778
    assert wrote[0] == text[8]
    assert [token for token in wrote if token == 7777] == [7777] * 4
    assert wrote[-9:-1] == [7777, text[10], 7777, text[11], 7777, text[12], 7777, text[13]]


@pytest.mark.parametrize("kind", ["same text", "little in common", "noise", "nothing", "abandoned"])
def test_users_with_any_hit_rate_are_not_refused(service: ControlledService, kind: str) -> None:
    """What a session appends is what its model wrote, whether or not it was drafted."""
    rng = np.random.default_rng(11)
    with service.client("alice") as client:
        namespace = client.namespace(PATH)
        for number in range(120):
            text = TEXTS[number % len(TEXTS)]
            wrote = {
                "same text": text,
                # goes along with a stored output for a while, then leaves it
                "little in common": [
                    token if rng.random() < 0.5 else int(rng.integers(5000, 9000)) for token in text
                ],
                "noise": [token if rng.random() < 0.1 else int(rng.integers(100, 2000)) for token in text],
                "nothing": rng.integers(10_000, 90_000, 60).tolist(),
                "abandoned": text[: int(rng.integers(9, 40))],
            }[kind]
            session = namespace.open_session(wrote[:6])
            for token in wrote[6:]:
                session.step([int(token)], 8, 0.05)
            session.close(commit=False)
        counts = client.counts
    [found] = service.server.handlers.sessions.probes.stats()
    assert found.refused_steps == 0, (kind, found)
    assert found.excess < MAX_UNMATCHED_TOKENS / 2, (kind, found)
    assert not counts.empty.get(EmptyReason.LIMITED, 0)


@pytest.mark.parametrize("value", ["0", "-1", '"many"'])
def test_an_invalid_limit_is_refused_by_name(tmp_path: Path, value: str) -> None:
    file = tmp_path / "p.toml"
    file.write_text(f'[principals."a"]\nmax_unmatched_tokens = {value}\n')
    with pytest.raises(InvalidConfigError, match="max_unmatched_tokens"):
        read_policy_file(file)


def test_statistics_show_the_matches(service: ControlledService) -> None:
    probe(service, caller_of(service, "prober"), 1, "new session")
    with service.client("alice") as client, pytest.raises(Exception, match="every namespace"):
        client.stats()
    from support.serving import serving, socket_dir

    with (
        socket_dir() as folder,
        serving(service.cache, f"unix:{folder / 's.sock'}", access=service.access) as (server, address),
    ):
        server.handlers.sessions.probes.meter_of(caller_of(service, "prober"))
        shown = run_verb("stats", "--server", address).stdout
    assert (
        "drafts of prober\t0 tokens of shared text, 0 unanswered, 0.0 expected to match, 0 matched, "
        "0 steps refused" in shown
    )

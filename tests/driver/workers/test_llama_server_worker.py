"""The adapter for a llama-server, against a scripted one on a real socket: what it asks, and what it makes of
answers that no honest server gives. tests/interop has the real one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from suffixsvc.errors import (
    InvalidConfigError,
    InvalidInputError,
    LimitExceededError,
    ProtocolError,
    ServiceTimeoutError,
    ServiceUnavailableError,
    SuffixError,
    VocabularyMismatchError,
)
from suffixsvc.types import DraftSource
from suffixsvc_driver.workers.client.session import WorkerSession
from suffixsvc_driver.workers.llama_server.worker import LlamaServerClient
from suffixsvc_driver.workers.pool.connecting import connect
from suffixsvc_driver.workers.pool.pool import WorkerPool
from suffixsvc_models.vocabulary import Vocabulary
from support.scripted_sessions import PATIENT, ask_again, until
from support.scripted_workers import ScriptedLlama, echo, scripted_llama


def test_description(client: LlamaServerClient, script: ScriptedLlama, vocabulary: Vocabulary) -> None:
    description = client.check_vocabulary(vocabulary)
    assert description.model == "tiny.gguf"
    assert description.context_size == 512
    assert description.parameters == 1000
    assert description.seconds_per_token == 0.001
    assert description.compared == f"the texts of {vocabulary.size} ids"
    assert client.vocabulary(description) == vocabulary
    # the same process again is not compared again
    before = len(script.requests)
    assert client.check_vocabulary(vocabulary) == description
    assert [path for path, _ in script.requests[before:]] == ["/props"]


@pytest.mark.parametrize("rule", ["vocab-type", "eos", "size", "token-text"])
def test_another_vocabulary_is_refused(
    client: LlamaServerClient, script: ScriptedLlama, vocabulary: Vocabulary, rule: str
) -> None:
    texts = list(vocabulary.texts)
    if rule == "token-text":
        texts[200], texts[201] = texts[201], texts[200]
        script.vocabulary = Vocabulary("BPE", vocabulary.size, -1, 256, False, False, "", texts)
    elif rule == "eos":
        script.props["eos_token"] = "<|im_end|>"
    else:
        script.meta.update({"vocab_type": 1} if rule == "vocab-type" else {"n_vocab": 5000})
    with pytest.raises(VocabularyMismatchError) as caught:
        client.check_vocabulary(vocabulary)
    assert caught.value.rule == rule
    if rule == "token-text":
        assert "token 200" in str(caught.value)
    with pytest.raises(VocabularyMismatchError):  # remembered: a server is not asked for megabytes twice
        client.check_vocabulary(vocabulary)
    assert sum(path == "/v1/models" for path, _ in script.requests) == 1


def test_a_draft(session: WorkerSession, script: ScriptedLlama) -> None:
    script.complete = lambda body: (200, echo(body, [80, 81, 82], [math.log(p) for p in (0.5, 0.25, 0.1)]))
    draft = session.draft(3, PATIENT)
    assert draft.token_ids.tolist() == [80, 81, 82]
    assert draft.probs.tolist() == pytest.approx([0.5, 1 / 3, 1 / 6])  # beside one of probability 1/2
    assert set(draft.sources.tolist()) == {DraftSource.DRAFT_MODEL}
    (asked,) = script.completions()
    assert asked["prompt"] == [70, 71, 72]
    assert (asked["n_predict"], asked["n_probs"], asked["temperature"]) == (3, 2, 0)
    assert (asked["samplers"], asked["top_k"], asked["cache_prompt"]) == (["top_k"], 1, True)
    # after a chain, which is not part of the text
    session.draft(2, PATIENT, after=[90, 91])
    session.append([90])
    session.draft(2, PATIENT)
    assert [body["prompt"] for body in script.completions()[1:]] == [
        [70, 71, 72, 90, 91],
        [70, 71, 72, 90],
    ]
    session.close()


def test_a_long_text_is_sent_ahead(session: WorkerSession, script: ScriptedLlama) -> None:
    session.set_text(list(range(60, 160)))
    assert len(session.draft(4, PATIENT)) == 0
    until(script.completions)
    assert [body["n_predict"] for body in script.completions()] == [0]
    assert len(ask_again(session, 4)) == 4
    assert (session.late, session.failures) == (0, 0)


def test_p_min_and_tokens_without_a_probability(
    client: LlamaServerClient, vocabulary: Vocabulary, script: ScriptedLlama
) -> None:
    client.check_vocabulary(vocabulary)
    session = client.open_session(p_min=0.4)
    session.set_text([70])
    script.complete = lambda body: (200, echo(body, [80, 81, 82], [math.log(p) for p in (0.5, 0.3, 0.9)]))
    assert session.draft(3, PATIENT).token_ids.tolist() == [80]

    def cut_character(body: dict[str, Any]) -> tuple[int, Any]:
        """The second and third token are bytes of one character: only the last has a probability."""
        reply = echo(body, [80, 240, 159, 83])
        del reply["completion_probabilities"][1]
        return 200, reply

    script.complete = cut_character
    assert session.draft(4, PATIENT).token_ids.tolist() == [80]


@pytest.mark.parametrize(
    ("kind", "error"),
    [("exceed_context_size_error", LimitExceededError), ("invalid_request_error", InvalidInputError)],
)
def test_a_text_the_server_refuses_is_not_sent_again(
    session: WorkerSession, script: ScriptedLlama, kind: str, error: type[SuffixError]
) -> None:
    good = script.complete
    script.complete = lambda body: (400, {"error": {"code": 400, "message": "no", "type": kind}})
    assert len(session.draft(3, PATIENT)) == 0
    assert len(session.draft(3, PATIENT)) == 0
    assert isinstance(session.last_error, error)
    assert len(script.completions()) == 1
    script.complete = good
    session.set_text([70, 71])
    assert len(session.draft(3, PATIENT)) == 3


def test_a_connection_that_the_server_closed_meanwhile(session: WorkerSession, script: ScriptedLlama) -> None:
    """Servers close idle connections: the next request opens another one, without a failure."""
    good = script.complete

    def then_close(body: dict[str, Any]) -> bytes:
        import json

        data = json.dumps(echo(body, [65] * body["n_predict"])).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data)

    script.complete = then_close  # and it does not say so
    assert len(session.draft(3, PATIENT)) == 3
    script.complete = good
    for _ in range(3):
        assert len(session.draft(3, PATIENT)) == 3
    assert (session.failures, session.late) == (0, 0)


def test_a_restart_with_another_model(
    session: WorkerSession, client: LlamaServerClient, script: ScriptedLlama, vocabulary: Vocabulary
) -> None:
    """The new one is compared before any of its drafts is used."""
    assert len(session.draft(3, PATIENT)) == 3
    texts = list(vocabulary.texts)
    texts[65], texts[66] = texts[66], texts[65]
    honest, good = script.vocabulary, script.complete
    script.complete = lambda body: b""
    assert len(session.draft(3, PATIENT)) == 0
    script.complete, script.marker = good, "second"
    script.vocabulary = Vocabulary("BPE", vocabulary.size, -1, 256, False, False, "", texts)
    asked = len(script.completions())
    until(
        lambda: len(session.draft(3, PATIENT)) > 0 or isinstance(session.last_error, VocabularyMismatchError)
    )
    assert isinstance(session.last_error, VocabularyMismatchError)
    assert len(script.completions()) == asked
    script.vocabulary, script.marker = honest, "third"
    assert len(ask_again(session)) == 3


def test_an_address_without_a_listener(vocabulary: Vocabulary) -> None:
    with scripted_llama(vocabulary) as (address, _):
        pass
    with LlamaServerClient(address) as client:
        with pytest.raises(ServiceUnavailableError, match="cannot be reached"):
            client.check_vocabulary(vocabulary)
        session = client.open_session()
        session.set_text([1, 2])
        assert len(session.draft(3, PATIENT)) == 0
        assert session.broken


def test_a_server_that_never_answers(vocabulary: Vocabulary) -> None:
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with LlamaServerClient(f"http://127.0.0.1:{silent.getsockname()[1]}") as client:
            with pytest.raises((ServiceUnavailableError, ServiceTimeoutError)):
                client.check_vocabulary(vocabulary, 0.05)
            session = client.open_session()
            session.set_text([1, 2])
            assert len(session.draft(3, 0.02)) == 0
            assert session.late == 1


@pytest.mark.parametrize("missing", ["models", "n_vocab", "pieces", "key"])
def test_what_is_no_llama_server(
    client: LlamaServerClient, script: ScriptedLlama, vocabulary: Vocabulary, missing: str
) -> None:
    answer = script.answer
    if missing == "n_vocab":
        script.meta["n_vocab"] = None
    elif missing == "pieces":
        script.pieces = False
    else:
        reply = (
            (200, {"data": []}) if missing == "models" else (401, {"error": {"message": "Invalid API Key"}})
        )
        script.answer = lambda path, body: reply if path == "/v1/models" else answer(path, body)  # type: ignore[method-assign]  # another server
    expected = {"models": "data", "n_vocab": "n_vocab", "pieces": "September 2024", "key": "--api-key"}
    with pytest.raises((ProtocolError, ServiceUnavailableError), match=expected[missing]):
        client.check_vocabulary(vocabulary)


@pytest.mark.parametrize("in_pool", [False, True], ids=["alone", "pool"])
def test_a_speed_that_no_float_holds_is_measured_instead(
    server: tuple[str, ScriptedLlama], script: ScriptedLlama, vocabulary: Vocabulary, in_pool: bool
) -> None:
    """A server that said it takes 10**400 ms a token ended the comparison with OverflowError. As for
    infinity, the client's own clock counts."""
    script.complete = lambda body: (
        200,
        echo(body, [65] * body["n_predict"], **{"timings/predicted_per_token_ms": 10**400}),
    )
    with WorkerPool([server[0]]) if in_pool else LlamaServerClient(server[0]) as client:
        assert 0.0 < client.check_vocabulary(vocabulary, PATIENT).seconds_per_token < PATIENT


@pytest.mark.parametrize("token", [10**400, 1 << 31, -1, True])
def test_special_tokens_outside_the_vocabulary(
    client: LlamaServerClient, script: ScriptedLlama, vocabulary: Vocabulary, token: int
) -> None:
    """An id of the BOS token that int32 does not hold ended the comparison with struct.error."""
    answer = script.answer
    script.answer = lambda path, body: (  # type: ignore[method-assign]  # another server
        (200, {"tokens": [token]})
        if path == "/tokenize" and isinstance(body["content"], str)
        else answer(path, body)
    )
    with pytest.raises(ProtocolError, match=r"token ids in 0 \.\. \d+"):
        client.check_vocabulary(vocabulary)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "localhost",
        "localhost:0",
        "host:99999",
        "a b:80",
        "ipv4:1.2.3.4:80",
        "::1:80",
        "unix:",
        "https://host:1",
        "http://host",
        "http://:80",
        "http://u:p@h:1",
    ],
)
def test_addresses(address: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"address.*http://HOST:PORT"):
        connect(address)


def test_addresses_of_both_kinds() -> None:
    for address in ("unix:/tmp/x", "localhost:8000", "[::1]:8000", "http://[::1]:80/api/"):
        with connect(address) as worker:
            assert worker.address == address

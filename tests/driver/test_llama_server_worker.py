"""The adapter for a llama-server, against a scripted one on a real socket: what it asks, and what it makes of
answers that no honest server gives. tests/interop has the real one."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from suffixsvc_driver.config import DriverConfig
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.loop import generate
from suffixsvc_driver.targets.llama import LlamaTarget
from suffixsvc_driver.targets.llama_model import LlamaModel
from suffixsvc_driver.vocabulary import Vocabulary
from suffixsvc_driver.workers.connecting import connect
from suffixsvc_driver.workers.llama_server import LlamaServerClient
from suffixsvc_driver.workers.pool import WorkerPool
from suffixsvc_driver.workers.session import WorkerSession
from support.scripted_workers import ScriptedLlama, echo, scripted_llama
from support.targets import talkative_prompt

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
from suffixsvc.types import Draft, DraftSource

PATIENT = 300.0


@pytest.fixture(scope="module")
def vocabulary(tiny_model: Path) -> Vocabulary:
    with LlamaModel(tiny_model, vocab_only=True) as model:
        return model.vocabulary


@pytest.fixture
def server(vocabulary: Vocabulary) -> Iterator[tuple[str, ScriptedLlama]]:
    with scripted_llama(vocabulary) as found:
        yield found
    assert not [thread for thread in threading.enumerate() if thread.name == "llama-server"]


@pytest.fixture
def script(server: tuple[str, ScriptedLlama]) -> ScriptedLlama:
    return server[1]


@pytest.fixture
def client(server: tuple[str, ScriptedLlama]) -> Iterator[LlamaServerClient]:
    with LlamaServerClient(server[0]) as client:
        yield client


@pytest.fixture
def session(client: LlamaServerClient, vocabulary: Vocabulary) -> WorkerSession:
    client.check_vocabulary(vocabulary)
    session = client.open_session(p_min=0.0, top_k=2)
    session.set_text([70, 71, 72])
    return session


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def ask_again(session: WorkerSession, count: int = 3) -> Draft:
    """Ask until there is a draft: after a failure the server is left alone for a moment."""
    found: list[Draft] = []

    def asked() -> bool:
        found[:] = [session.draft(count, PATIENT)]
        return len(found[0]) > 0

    until(asked)
    return found[0]


def test_what_it_is(client: LlamaServerClient, script: ScriptedLlama, vocabulary: Vocabulary) -> None:
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
    # behind a chain, which is no part of the text
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


def _with(reply: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], tuple[int, Any]]:
    return lambda body: (200, reply(body))


NONSENSE: dict[str, Callable[[dict[str, Any]], tuple[int, Any]]] = {
    "an id outside the vocabulary": _with(lambda body: echo(body, [80, 100_000, 81])),
    "a negative id": _with(lambda body: echo(body, [-1])),
    "an id beyond int32": _with(lambda body: echo(body, [1 << 40])),
    "no number": _with(lambda body: echo(body, ["80"])),
    "true": _with(lambda body: echo(body, [True])),
    "a float": _with(lambda body: echo(body, [80.0])),
    "NaN": _with(lambda body: echo(body, [80], [math.nan])),
    "infinity": _with(lambda body: echo(body, [80], [math.inf])),
    "a probability above one": _with(lambda body: echo(body, [80], [0.7])),
    "a probability that no float holds": _with(lambda body: echo(body, [80], [-(10**400)])),
    "no probability": _with(lambda body: echo(body, [80], [None])),
    "no tokens": _with(lambda body: {"content": "abc"}),
    "tokens that are no list": _with(lambda body: {**echo(body, [80]), "tokens": {"0": 80}}),
    "a list": _with(lambda body: [1, 2, 3]),
    "nothing": _with(lambda body: None),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_is_an_empty_draft(session: WorkerSession, script: ScriptedLlama, what: str) -> None:
    good = script.complete
    script.complete = NONSENSE[what]
    assert len(session.draft(3, PATIENT)) == 0
    assert isinstance(session.last_error, ProtocolError)
    assert session.failures == 1
    script.complete = good
    assert len(session.draft(3, PATIENT)) == 3


def test_more_tokens_than_were_asked_for(session: WorkerSession, script: ScriptedLlama) -> None:
    script.complete = lambda body: (200, echo(body, [65] * 10_000))
    assert len(session.draft(5, PATIENT)) == 5


BROKEN: dict[str, tuple[int, Any] | bytes] = {
    "an error": (500, {"error": {"message": "oops", "type": "server_error"}}),
    "still loading": (503, {"error": {"message": "Loading model", "type": "unavailable_error"}}),
    "an error that is none": (500, [1]),
    "no answer": b"",
    "half an answer": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
    "no HTTP": b"220 mail.example.com ESMTP\r\n",
    "no JSON": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<htm>",
    "no end": b"HTTP/1.1 200 OK\r\n\r\n" + b" " * ((16 << 20) + 10),
    "depth": b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_answer_is_an_empty_draft(session: WorkerSession, script: ScriptedLlama, what: str) -> None:
    good = script.complete
    script.complete = lambda body: BROKEN[what]
    assert len(session.draft(3, PATIENT)) == 0
    assert isinstance(session.last_error, (ServiceUnavailableError, ProtocolError))
    assert session.broken
    script.complete = good
    assert len(ask_again(session)) == 3


def test_half_an_answer_is_a_broken_connection(session: WorkerSession, script: ScriptedLlama) -> None:
    """It was reported as "an answer is no JSON", as if the server spoke another protocol. A check that ran
    out of time read half an answer, too."""
    script.complete = lambda body: BROKEN["half an answer"]
    assert len(session.draft(3, PATIENT)) == 0
    assert isinstance(session.last_error, ServiceUnavailableError)
    assert "IncompleteRead" in str(session.last_error)


def test_a_slow_server(session: WorkerSession, script: ScriptedLlama) -> None:
    """The answer that has not come by the next step is dropped with its connection; nobody waits for it."""
    release, entered = threading.Event(), threading.Event()
    good = script.complete

    def slow(body: dict[str, Any]) -> tuple[int, Any]:
        entered.set()
        assert release.wait(PATIENT)
        return 200, echo(body, [99] * body["n_predict"])

    script.complete = slow
    before = time.monotonic()
    assert len(session.draft(3, 0.03)) == 0
    assert entered.wait(PATIENT)
    assert not session.broken
    assert len(session.draft(3, PATIENT)) == 0  # the next step: hang up
    assert session.broken
    assert len(session.draft(3, PATIENT)) == 0  # left alone for a while
    assert time.monotonic() - before < PATIENT / 2
    assert (session.late, session.failures) == (2, 0)
    script.complete = good
    connections = script.connections
    assert ask_again(session).token_ids.tolist() == [65, 65, 65]
    assert script.connections == connections + 1
    release.set()


def test_an_answer_that_is_a_little_late(session: WorkerSession, script: ScriptedLlama) -> None:
    """It comes before the next step: its draft is dropped, the connection stays."""
    release = threading.Event()
    good = script.complete

    def slow(body: dict[str, Any]) -> tuple[int, Any]:
        assert release.wait(PATIENT)
        return 200, echo(body, [99] * body["n_predict"])

    script.complete = slow
    assert len(session.draft(3, 0.03)) == 0
    release.set()
    exchange = session._exchange
    assert exchange is not None
    until(lambda: not exchange.outstanding)
    connections = script.connections
    script.complete = good
    assert session.draft(3, PATIENT).token_ids.tolist() == [65, 65, 65]
    assert (session.late, session.failures, script.connections) == (1, 0, connections)


def test_comparing_may_take_longer_than_a_draft(session: WorkerSession, script: ScriptedLlama) -> None:
    """A driver that waits a moment only must not keep a restarted server from ever being compared."""
    script.complete = lambda body: b""
    assert len(session.draft(3, PATIENT)) == 0
    script.marker = "second"
    answer = script.answer
    gate = threading.Event()

    def gated(path: str, body: Any) -> tuple[int, Any] | bytes:
        if path == "/v1/models":
            assert gate.wait(PATIENT)
        return answer(path, body)

    script.answer = gated  # type: ignore[method-assign]  # a slow one
    script.complete = lambda body: (200, echo(body, [65] * body["n_predict"]))
    until(lambda: session.draft(3, 0.001) is not None and session.late > 5)
    failures = session.failures
    gate.set()
    assert len(ask_again(session)) == 3
    assert session.failures == failures


def test_a_server_that_drips(session: WorkerSession, script: ScriptedLlama) -> None:
    """A byte now and then keeps every single read alive; the driver's own timer does not care."""
    stop = threading.Event()

    def drip(body: dict[str, Any]) -> bytes:
        stop.wait(PATIENT)
        return b""

    script.complete = drip
    assert len(session.draft(3, 0.05)) == 0
    assert session.late == 1
    stop.set()


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
    """Servers close idle connections: the next question makes another one, and nobody notices."""
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


def test_nobody_there(vocabulary: Vocabulary) -> None:
    with scripted_llama(vocabulary) as (address, _):
        pass
    with LlamaServerClient(address) as client:
        with pytest.raises(ServiceUnavailableError, match="cannot be asked"):
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
    """A server that said it takes 10**400 ms a token ended the comparison, and a pool's describe(), with
    OverflowError. As for infinity, the client's own clock counts."""
    script.complete = lambda body: (
        200,
        echo(body, [65] * body["n_predict"], **{"timings/predicted_per_token_ms": 10**400}),
    )
    with WorkerPool([server[0]]) if in_pool else LlamaServerClient(server[0]) as client:
        assert 0.0 < client.describe(PATIENT).seconds_per_token < PATIENT
        client.check_vocabulary(vocabulary)


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


def test_generation_with_a_hostile_server(
    server: tuple[str, ScriptedLlama], tiny_target: LlamaTarget, vocabulary: Vocabulary
) -> None:
    """Whatever it answers, the text is the plain one."""
    address, script = server
    prompt = talkative_prompt(tiny_target, 40)
    plain = generate(tiny_target, prompt, max_tokens=40)
    lies = iter([*NONSENSE.values(), *(lambda body, r=r: r for r in BROKEN.values())] * 20)
    script.complete = lambda body: (
        (200, echo(body, [65] * body["n_predict"])) if "ignore_eos" in body else next(lies)(body)
    )
    with connect(address) as client:
        layer = DraftModelLayer(client, vocabulary, p_min=0.0, timeout_seconds=1.0)
        result = generate(
            tiny_target,
            prompt,
            DriverConfig(policy="first-match"),
            [layer],
            max_tokens=40,
            curve=CostCurve.linear(0.05, 32),
        )
        layer.close()
    assert result.token_ids == plain.token_ids
    assert layer.session.failures > 1


@pytest.mark.parametrize(
    "address",
    [
        "",
        "localhost",
        "localhost:0",
        "host:99999",
        "unix:",
        "https://host:1",
        "http://host",
        "http://:80",
        "http://u:p@h:1",
    ],
)
def test_addresses(address: str) -> None:
    with pytest.raises(InvalidConfigError, match="address"):
        connect(address)


def test_addresses_of_both_kinds() -> None:
    for address in ("unix:/tmp/x", "localhost:8000", "[::1]:8000", "http://[::1]:80/api/"):
        with connect(address) as worker:
            assert worker.address == address

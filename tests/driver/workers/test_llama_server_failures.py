"""Malformed, slow and broken replies of a llama-server, from a scripted one on a real socket."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from suffixsvc.errors import (
    ProtocolError,
    ServiceUnavailableError,
)
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets.single import LlamaTarget
from suffixsvc_driver.workers.client.session import WorkerSession
from suffixsvc_driver.workers.pool.connecting import connect
from suffixsvc_models.vocabulary import Vocabulary
from support.scripted_sessions import PATIENT, ask_again, until
from support.scripted_workers import ScriptedLlama, echo
from support.targets import talkative_prompt
from support.worker_parts import channel_of


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
def test_malformed_replies_are_empty_drafts(session: WorkerSession, script: ScriptedLlama, what: str) -> None:
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
    """A reply that has not arrived by the next step is dropped with its connection."""
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
    channel = channel_of(session)
    assert channel is not None
    until(lambda: not channel.outstanding)
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

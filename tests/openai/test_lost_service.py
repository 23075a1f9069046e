"""The service of stored outputs is killed, paused or lies while answers run: they stay right."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from suffixsvc_client import ClientConfig, SuffixClient
from suffixsvc_follower import FollowerConfig, FollowerSession, connect
from suffixsvc_openai.engine.memory import PAUSE_SECONDS, Memory, NotStored
from suffixsvc_openai.engine.plans import Caller
from support.hostile_service import hostile_service
from support.openai_serving import (
    LANES,
    client_of,
    cycle_text,
    idle,
    running,
    settings_of,
    stream_on_every_lane,
)
from support.serving import ServeProcess, eventually, socket_dir

TOKENS = 1500


@pytest.fixture
def service() -> Iterator[ServeProcess]:
    with socket_dir() as folder, ServeProcess(folder) as process:
        yield process.start()


def _kill(service: ServeProcess) -> None:
    service.kill()


def _pause(service: ServeProcess) -> None:
    service.send(signal.SIGSTOP)


@pytest.mark.parametrize("harm", [_kill, _pause])
def test_a_service_that_is_lost_costs_no_answer(
    cycle: Path, service: ServeProcess, harm: Callable[[ServeProcess], None]
) -> None:
    """A stream is under way on every lane; then more answers than lanes begin."""
    with running(settings_of(cycle, service=service.address)) as server:
        texts = stream_on_every_lane(server, TOKENS, lambda: harm(service))
        assert texts == [cycle_text("b", TOKENS)] * LANES
        with client_of(server) as client:
            later = client.completions.create(
                model="cycle", prompt=["a", "b", "c"], max_tokens=20, temperature=0
            )
        assert [choice.text for choice in later.choices] == [cycle_text(end, 20) for end in "abc"]
        if harm is _pause:
            service.send(signal.SIGCONT)
        idle(server)


def test_a_service_that_lies_costs_no_answer(cycle: Path) -> None:
    """Its drafts begin as the answer does, and go on with noise and invalid values."""
    with hostile_service(3, 512) as (service, address):
        service.truth = [*b"ab", *cycle_text("b", 400).encode()]
        settings = settings_of(cycle, service=address, mode="remote")
        with running(settings) as server, client_of(server) as client:
            for _ in range(3):
                answer = client.completions.create(model="cycle", prompt="ab", max_tokens=400, temperature=0)
                assert answer.choices[0].text == cycle_text("b", 400)
            assert service.answers > 10
            idle(server)


def test_ended_answers_do_not_wait_for_a_paused_service(service: ServeProcess) -> None:
    """The first one waits for its timeout; the others are left to the service for a while."""
    now = [0.0]
    client = SuffixClient(service.address, ClientConfig(call_timeout_s=0.3))
    with Memory(client, "model", "tokenizer", clock=lambda: now[0]) as memory:
        sessions = [memory.open(Caller(), [1, 2]) for _ in range(4)]
        service.send(signal.SIGSTOP)
        with capture_logs() as logs:
            for session in sessions[:3]:
                assert not isinstance(session, NotStored)
                ended = memory.end(session, [3, 4], 2, store=True, incomplete=False)
                assert ended is NotStored.SERVICE
        assert [log["event"] for log in logs] == ["outputs are not stored for a while"]
        service.send(signal.SIGCONT)
        now[0] += PAUSE_SECONDS
        assert not isinstance(sessions[3], NotStored)
        assert memory.end(sessions[3], [3, 4], 2, store=True, incomplete=False) is None
        assert sum(each.outputs for each in memory.stored("local")) >= 1


def test_what_ended_while_the_service_was_paused_is_stored_when_it_answers(service: ServeProcess) -> None:
    """A follower keeps it; private text is not kept."""
    now = [0.0]
    with memory_of(service.address, call_timeout_s=0.3, clock=lambda: now[0]) as memory:
        stored, later, private = (memory.open(Caller(store=store), [1, 2]) for store in (True, True, False))
        service.send(signal.SIGSTOP)
        for session, store, why in (
            (stored, True, NotStored.SERVICE),
            (later, True, NotStored.SERVICE),
            (private, False, NotStored.NO_STORE),
        ):
            assert not isinstance(session, NotStored)
            assert memory.end(session, [3, 4, 5], 2, store=store, incomplete=False) is why
        service.send(signal.SIGCONT)
        now[0] += PAUSE_SECONDS
        eventually(
            lambda: sum(each.outputs for each in memory.stored("local")) == 2, "both outputs are stored"
        )


@contextmanager
def memory_of(address: str, *, call_timeout_s: float, clock: Callable[[], float]) -> Iterator[Memory]:
    """Stored outputs of a service, through a follower of hasty calls."""
    config = FollowerConfig(ClientConfig(call_timeout_s=call_timeout_s), connect_seconds=60)
    backend = connect(address, mode="follow", config=config)
    with Memory(
        backend, "model", "tokenizer", clock=clock, sends_later=lambda each: isinstance(each, FollowerSession)
    ) as memory:
        yield memory

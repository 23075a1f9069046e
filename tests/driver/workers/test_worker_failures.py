"""What the draft worker answers, keeps and logs when its log, its thread or the model fails."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from suffixsvc.errors import ModelError, ServiceUnavailableError
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.workers.client.grpc_client import DraftWorkerClient
from suffixsvc_driver.workers.server.engine import DraftEngine, DraftRequest, Job
from suffixsvc_driver.workers.server.scheduler import Scheduler
from suffixsvc_driver.workers.server.servicer import DraftWorkerServer, WorkerSettings
from suffixsvc_driver.workers.server.ticket import Ticket
from support.worker_parts import draft_alone, sequences_of

SETTINGS = ContextSettings(
    context_size=512, slots=4, threads=1, max_width=1, flash_attention=False, kv_type="f32"
)
PATIENT = 300.0
TEXT = [70, 71, 72, 73, 80, 81]


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[DraftEngine]:
    engine = DraftEngine(tiny_model, SETTINGS)
    yield engine
    engine.close()


@pytest.fixture
def scheduler(engine: DraftEngine) -> Iterator[Scheduler]:
    """Not started."""
    scheduler = Scheduler(engine, busy_after_seconds=PATIENT)
    yield scheduler
    scheduler.stop()


def ask(name: str) -> DraftRequest:
    return DraftRequest(name, 0, TEXT, 5)


def until_answered(scheduler: Scheduler, ticket: Ticket) -> None:
    """:meth:`Scheduler.wait` has no bound of its own: a ticket that is never answered must fail the test."""
    assert ticket.done.wait(PATIENT), "never answered"
    scheduler.wait(ticket)


def test_a_log_that_cannot_be_written_keeps_no_request_waiting(
    engine: DraftEngine, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard error was a pipe whose reader had ended. The line about a failed batch raised BrokenPipeError
    before its requests were answered: the model's thread ended, their clients waited without end, and every
    later request was refused. Requests are completed even if the line cannot be written."""
    plain = draft_alone(engine, ask("x")).token_ids.tolist()
    reading, writing = os.pipe()
    os.close(reading)
    with io.TextIOWrapper(io.FileIO(writing, "w"), write_through=True) as broken:
        line = [structlog.processors.JSONRenderer()]
        logger = structlog.wrap_logger(structlog.PrintLogger(broken), processors=line)
        with pytest.raises(BrokenPipeError):
            logger.warning("a line")
        monkeypatch.setattr("suffixsvc_driver.workers.server.scheduler._log", logger)
        begin = engine.begin

        def failing(request: DraftRequest, *rest: Any) -> Job | None:
            if request.session_id == "a":
                raise ZeroDivisionError
            return begin(request, *rest)

        monkeypatch.setattr(engine, "begin", failing)
        tickets = [scheduler.submit(ask(name)) for name in "ab"]
        scheduler.start()
        for ticket in tickets:
            until_answered(scheduler, ticket)
    assert isinstance(tickets[0].error, ModelError)
    assert tickets[1].draft.token_ids.tolist() == plain
    assert scheduler.failures == 1
    assert not scheduler.stopped


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the thread is to end
def test_what_is_being_started_is_answered_when_the_thread_ends(
    engine: DraftEngine, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that had left the queue and was not drafting yet was in no book. Where the thread ended at
    this moment nothing answered it, and neither those that were to start with it."""

    def ending(*arguments: Any) -> Job | None:
        raise SystemExit  # no Exception: it ends a thread without a trace

    monkeypatch.setattr(engine, "begin", ending)
    tickets = [scheduler.submit(ask(name)) for name in "abc"]
    scheduler.start()
    for ticket in tickets:
        until_answered(scheduler, ticket)
        assert isinstance(ticket.error, ServiceUnavailableError)
    assert scheduler.stopped


def test_forgetting_all_kv_goes_on_where_one_sequence_fails(
    engine: DraftEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failure all KV is forgotten. The first sequence that could not be cut ended that: the others
    kept tokens whose KV the failure may have spoiled, and the next drafts were made from it."""
    for name in "abc":
        draft_alone(engine, DraftRequest(name, 0, [ord(name), *TEXT], 3))
    held = [each for each in sequences_of(engine) if each.tokens]
    assert len(held) == 3
    cut: list[int] = []

    def failing(slot: int, keep: int) -> None:
        cut.append(slot)
        if slot == held[0].index:
            raise RuntimeError("llama.cpp")

    monkeypatch.setattr(engine.context, "cut", failing)
    engine.clear()
    assert [each.tokens for each in held] == [[], [], []]
    assert sorted(cut) == [each.index for each in sequences_of(engine)]


def test_a_worker_says_at_its_end_how_often_it_failed(
    engine: DraftEngine, socket_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures were counted and no one could read the count. It is in the last line of the log."""
    monkeypatch.setattr(engine, "begin", lambda *_: 1 / 0)
    with structlog.testing.capture_logs() as logs:
        server = DraftWorkerServer(engine, f"unix:{socket_path}", WorkerSettings(busy_after_seconds=PATIENT))
        server.start()
        try:
            with DraftWorkerClient(server.address) as client:
                session = client.open_session()
                session.set_text(TEXT)
                assert len(session.draft(5, PATIENT)) == 0
                assert isinstance(session.last_error, ModelError)
                session.close()
        finally:
            server.stop()
    assert [entry["failures"] for entry in logs if entry["event"] == "draft worker stopped"] == [1]

"""Several draft workers as one, over real sockets: sessions that stay, move, and do without."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from suffixsvc.v1 import draft_worker_pb2 as pb
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.drafts.events import QueryLayer
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets.single import LlamaTarget
from suffixsvc_driver.workers.pool.entry import WorkerState
from suffixsvc_driver.workers.pool.pool import WorkerPool
from suffixsvc_driver.workers.pool.pool_session import PoolSession
from suffixsvc_driver.workers.server.engine import DraftRequest
from suffixsvc_models.vocabulary import Vocabulary
from support.pool_workers import PATIENT, SOON, checked, drafting, states, until, worker
from support.scripted_workers import scripted_llama, scripted_worker
from support.targets import talkative_prompt
from support.worker_parts import draft_alone, session_ids_of


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    names = ("draft-workers", "draft-stream", "llama-server")
    until(lambda: not [thread for thread in threading.enumerate() if thread.name in names])


@pytest.mark.parametrize(("checks", "together"), [((16, 8), 8), ((16, 0), 0)])
def test_a_pool_looks_at_as_many_suggestions_as_each_of_its_workers(
    folder: str, tiny_model: Path, vocabulary: Vocabulary, checks: tuple[int, int], together: int
) -> None:
    """A session may come to any of them, and one that does not look would write all of them itself."""
    addresses = [f"unix:{folder}/{i}" for i in range(2)]
    with (
        worker(addresses[0], tiny_model, checks=checks[0]),
        worker(addresses[1], tiny_model, checks=checks[1]),
        WorkerPool(addresses) as pool,
    ):
        assert pool.check_vocabulary(vocabulary).checks == together


def test_sessions_spread_and_stay(folder: str, tiny_model: Path, vocabulary: Vocabulary) -> None:
    addresses = [f"unix:{folder}/{i}" for i in range(2)]
    with worker(addresses[0], tiny_model), worker(addresses[1], tiny_model), WorkerPool(addresses) as pool:
        description = pool.check_vocabulary(vocabulary)
        assert description.model == tiny_model.name
        sessions = [pool.open_session(p_min=0.0) for _ in range(4)]
        for session in sessions:
            session.set_text([70, 71, 72])
            assert drafting(session) == drafting(sessions[0])
        assert [status.sessions for status in pool.status()] == [2, 2]
        where = [session.address for session in sessions]
        for session in sessions * 3:
            session.append([65])
            drafting(session)
        assert [session.address for session in sessions] == where
        assert sum(session.moves for session in sessions) == 0
        sessions[0].close()
        sessions[0].close()
        assert sum(status.sessions for status in pool.status()) == 3


def test_a_session_moves_when_its_worker_dies(folder: str, tiny_model: Path, vocabulary: Vocabulary) -> None:
    """Its sessions go on with another one and the same text, and it is used again once it is back."""
    addresses = [f"unix:{folder}/{i}" for i in range(2)]
    with ExitStack() as stack, capture_logs() as logs:
        dying = ExitStack()
        engine = dying.enter_context(worker(addresses[0], tiny_model))
        expected = draft_alone(engine, DraftRequest("x", 0, [70, 71, 72, 73], 3)).token_ids.tolist()
        pool = stack.enter_context(WorkerPool(addresses, **SOON))  # type: ignore[arg-type]  # as typed there
        checked(pool, vocabulary)
        until(lambda: states(pool) == [WorkerState.USABLE, WorkerState.GONE])
        session = pool.open_session(p_min=0.0)
        session.set_text([70, 71, 72])
        drafting(session)
        stack.enter_context(worker(addresses[1], tiny_model))
        until(lambda: states(pool)[1] is WorkerState.USABLE)
        dying.close()
        session.append([73])
        assert drafting(session) == expected
        assert session.address == addresses[1]
        assert session.moves == 1
        until(lambda: states(pool)[0] is WorkerState.GONE)
        stack.enter_context(worker(addresses[0], tiny_model))
        until(lambda: states(pool)[0] is WorkerState.USABLE)
        assert drafting(session) == expected
        assert session.address == addresses[1]  # where its KV is
        second = pool.open_session(p_min=0.0)
        second.set_text([70])
        drafting(second)
        assert second.address == addresses[0]
    logged = [(log["event"], log["address"]) for log in logs if log["log_level"] == "warning"]
    assert len(logged) == len(set(logged))


def test_drafts_are_empty_without_workers(folder: str, tiny_model: Path, tiny_target: LlamaTarget) -> None:
    """A generation whose only workers die emits the plain output, without waiting."""
    vocabulary = tiny_target.model.vocabulary
    addresses = [f"unix:{folder}/{i}" for i in range(2)]
    prompt = talkative_prompt(tiny_target, 60)
    plain = generate(tiny_target, prompt, max_tokens=60)
    workers = ExitStack()
    for address in addresses:
        workers.enter_context(worker(address, tiny_model))
    with workers, WorkerPool(addresses, recheck_seconds=(PATIENT, PATIENT)) as pool:
        layer = DraftModelLayer(pool, vocabulary, p_min=0.0, timeout_seconds=PATIENT)
        assert pool.up
        steps = []

        def kill(_step: object) -> None:
            steps.append(1)
            if len(steps) == 3:
                workers.close()

        result = generate(
            tiny_target,
            prompt,
            DriverConfig(policy="first-match", k_start=4, k_max=4),
            [layer],
            max_tokens=60,
            curve=CostCurve.linear(0.05, 32),
            on_step=kill,
        )
        assert result.token_ids == plain.token_ids
        assert result.stats.accepted > 0
        session = layer.session
        assert isinstance(session, PoolSession)
        assert session.unserved > 10
        assert states(pool) == [WorkerState.GONE, WorkerState.GONE]
        assert not pool.up
        # an agent that begins now has its layer all the same
        later = DraftModelLayer(pool, vocabulary, "later")
        assert later.spec.seconds_per_token > 0
        assert len(later.draft([65], QueryLayer("x", 4))) == 0
        layer.close()
        later.close()


def test_a_restart_with_another_model(
    folder: str, tiny_model: Path, foreign_model: Path, vocabulary: Vocabulary
) -> None:
    address = f"unix:{folder}/0"
    with WorkerPool([address], **SOON) as pool, capture_logs() as logs:  # type: ignore[arg-type]  # as typed there
        with worker(address, tiny_model):
            pool.check_vocabulary(vocabulary)
            session = pool.open_session(p_min=0.0)
            session.set_text([70, 71, 72])
            expected = drafting(session)
        with worker(address, foreign_model) as stranger:
            until(lambda: session.draft(3, PATIENT) is not None and states(pool) == [WorkerState.UNFIT])
            for _ in range(5):
                assert len(session.draft(3, PATIENT)) == 0
            assert session.unserved >= 5
            assert stranger.length(next(iter(session_ids_of(stranger)), "")) == 0  # it was never asked
            (status,) = pool.status()
            assert "token 90" in status.reason
        with worker(address, tiny_model):
            assert drafting(session) == expected
            assert states(pool) == [WorkerState.USABLE]
        assert pool.status()[0].departures >= 2
        session.close()
    unfit = [log for log in logs if log.get("state") == "unfit"]
    assert len(unfit) == 1


def test_a_restart_of_an_idle_worker_is_detected(
    folder: str, tiny_model: Path, foreign_model: Path, vocabulary: Vocabulary
) -> None:
    """While no session uses a worker its checks do."""
    address = f"unix:{folder}/0"
    with WorkerPool([address], **SOON) as pool:  # type: ignore[arg-type]  # as typed there
        with worker(address, tiny_model):
            pool.check_vocabulary(vocabulary)
        with worker(address, foreign_model):
            until(lambda: states(pool) == [WorkerState.UNFIT])


def test_a_session_leaves_a_busy_worker(folder: str, tiny_model: Path, vocabulary: Vocabulary) -> None:
    busy = f"unix:{folder}/busy"

    def reply(_request: pb.WorkerDraftRequest) -> pb.WorkerDraftReply:
        return pb.WorkerDraftReply(busy=True)

    good = f"unix:{folder}/good"
    with (
        scripted_worker(busy, vocabulary, reply, seconds_per_token=1e-9),
        WorkerPool([busy, good], **SOON) as pool,  # type: ignore[arg-type]  # as typed there
    ):
        checked(pool, vocabulary)
        session = pool.open_session(p_min=0.0)
        session.set_text([70, 71])
        for _ in range(6):
            assert len(session.draft(3, PATIENT)) == 0
        assert session.address == busy  # there is no other
        with worker(good, tiny_model):
            until(lambda: states(pool)[1] is WorkerState.USABLE)
            assert len(drafting(session)) == 3
            assert session.address == good
            assert session.busy >= 7
            assert session.failures == 0
            assert states(pool) == [WorkerState.USABLE, WorkerState.USABLE]
        session.close()


def test_a_session_leaves_a_slow_worker(folder: str, tiny_model: Path, vocabulary: Vocabulary) -> None:
    slow, good = f"unix:{folder}/slow", f"unix:{folder}/good"
    release = threading.Event()

    def reply(_request: pb.WorkerDraftRequest) -> pb.WorkerDraftReply:
        assert release.wait(PATIENT)
        return pb.WorkerDraftReply()

    with (
        scripted_worker(slow, vocabulary, reply, seconds_per_token=1e-9),
        worker(good, tiny_model),
        WorkerPool([slow, good]) as pool,
    ):
        pool.check_vocabulary(vocabulary)
        until(lambda: states(pool) == [WorkerState.USABLE, WorkerState.USABLE])
        session = pool.open_session(p_min=0.0)
        session.set_text([70, 71])
        for _ in range(4):
            assert session.address in ("", slow)
            assert len(session.draft(3, 0.01)) == 0
        assert session.address == good
        assert len(drafting(session)) == 3
        assert session.late == 4
        release.set()
        session.close()


def test_a_long_text_moves(folder: str, tiny_model: Path, vocabulary: Vocabulary) -> None:
    small, large = f"unix:{folder}/small", f"unix:{folder}/large"
    with worker(small, tiny_model, 256), worker(large, tiny_model), WorkerPool([small, large]) as pool:
        pool.check_vocabulary(vocabulary)
        session = pool.open_session(p_min=0.0)
        session.set_text([70] * 300)
        drafting(session)
        assert session.address == large
        # one that grows out of the small one moves
        growing = pool.open_session(p_min=0.0)
        growing.set_text([70] * 200)
        drafting(growing)
        assert growing.address == small
        growing.append([71] * 100)
        drafting(growing)
        assert (growing.address, growing.moves) == (large, 1)
        session.close()
        growing.close()


def test_both_kinds_of_worker(folder: str, tiny_model: Path, vocabulary: Vocabulary) -> None:
    """A pool of ours and a llama-server; whichever goes, the other serves."""
    ours = f"unix:{folder}/0"
    with ExitStack() as stack:
        with scripted_llama(vocabulary) as (theirs, script):
            pool = stack.enter_context(WorkerPool([theirs, ours], **SOON))  # type: ignore[arg-type]  # as typed there
            checked(pool, vocabulary)
            session = pool.open_session(p_min=0.0)
            session.set_text([70, 71, 72])
            assert drafting(session) == [65, 65, 65]
            assert session.address == theirs
            stack.enter_context(worker(ours, tiny_model))
            until(lambda: states(pool)[1] is WorkerState.USABLE)
            script.complete = lambda body: b""  # it dies while it answers
            assert drafting(session) != [65, 65, 65]
            assert session.address == ours
        session.close()

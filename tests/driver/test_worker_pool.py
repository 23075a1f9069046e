"""Several draft workers as one, over real sockets: sessions that stay, move, and do without."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from suffixsvc_driver.config import DriverConfig
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.loop import generate
from suffixsvc_driver.targets.llama import LlamaTarget
from suffixsvc_driver.targets.llama_context import ContextSettings
from suffixsvc_driver.targets.llama_model import LlamaModel
from suffixsvc_driver.vocabulary import Vocabulary
from suffixsvc_driver.workers.engine import DraftEngine, DraftRequest
from suffixsvc_driver.workers.pool import WorkerPool, WorkerState
from suffixsvc_driver.workers.pool_session import PoolSession
from suffixsvc_driver.workers.server import DraftWorkerServer
from support.scripted_workers import scripted_llama, scripted_worker
from support.targets import talkative_prompt
from support.tiny_gguf import SPECIAL, byte_texts, write_tiny_llama

from suffixsvc.errors import InvalidConfigError, ServiceUnavailableError, VocabularyMismatchError
from suffixsvc.v1 import draft_worker_pb2 as pb

PATIENT = 300.0
#: checks that the tests can wait for
SOON = {"recheck_seconds": (0.02, 0.05), "check_every_seconds": 0.05}


@pytest.fixture(scope="module")
def vocabulary(tiny_model: Path) -> Vocabulary:
    with LlamaModel(tiny_model, vocab_only=True) as model:
        return model.vocabulary


@pytest.fixture(scope="module")
def foreign_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tokens mean each other's text."""
    texts = [*byte_texts(), *SPECIAL]
    texts[90], texts[91] = texts[91], texts[90]
    return write_tiny_llama(tmp_path_factory.mktemp("foreign") / "foreign.gguf", texts=texts)


@pytest.fixture
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="p") as folder:
        yield folder


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    names = ("draft-workers", "draft-stream", "llama-server")
    until(lambda: not [thread for thread in threading.enumerate() if thread.name in names])


@contextmanager
def worker(address: str, model: Path, context: int = 512, checks: int = 0) -> Iterator[DraftEngine]:
    """A worker of ours, in this process."""
    settings = ContextSettings(
        context, slots=2, threads=1, max_width=1 + checks, flash_attention=False, kv_type="f32"
    )
    engine = DraftEngine(model, settings)
    server = DraftWorkerServer(engine, address, busy_after_seconds=PATIENT)
    server.start()
    try:
        yield engine
    finally:
        server.stop()
        engine.close()


def checked(pool: WorkerPool, vocabulary: Vocabulary) -> None:
    """Check until one that fits has answered; briefly, as a worker that is not there takes all the time."""

    def fits() -> bool:
        try:
            pool.check_vocabulary(vocabulary, 0.1)
        except (ServiceUnavailableError, VocabularyMismatchError):  # a busy machine: one answered too late
            return False
        return True

    until(fits)


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def states(pool: WorkerPool) -> list[WorkerState]:
    return [status.state for status in pool.status()]


def drafting(session: PoolSession, count: int = 3) -> list[int]:
    """Ask until there is a draft."""
    found: list[int] = []

    def asked() -> bool:
        found[:] = session.draft(count, PATIENT).token_ids.tolist()
        return bool(found)

    until(asked)
    return found


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
        assert pool.describe() in (description, pool.describe())
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


def test_a_worker_that_dies(folder: str, tiny_model: Path, vocabulary: Vocabulary) -> None:
    """Its sessions go on with another one and the same text, and it is used again once it is back."""
    addresses = [f"unix:{folder}/{i}" for i in range(2)]
    with ExitStack() as stack, capture_logs() as logs:
        dying = ExitStack()
        engine = dying.enter_context(worker(addresses[0], tiny_model))
        expected = engine.draft(DraftRequest("x", 0, [70, 71, 72, 73], 3)).token_ids.tolist()
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
    told = [(log["event"], log["address"]) for log in logs if log["log_level"] == "warning"]
    assert len(told) == len(set(told))


def test_none_is_left(folder: str, tiny_model: Path, tiny_target: LlamaTarget) -> None:
    """A generation whose only workers die in the middle is the plain one, and waits for nobody."""
    vocabulary = tiny_target.model.vocabulary
    addresses = [f"unix:{folder}/{i}" for i in range(2)]
    prompt = talkative_prompt(tiny_target, 60)
    plain = generate(tiny_target, prompt, max_tokens=60)
    workers = ExitStack()
    for address in addresses:
        workers.enter_context(worker(address, tiny_model))
    with workers, WorkerPool(addresses, recheck_seconds=(PATIENT, PATIENT)) as pool:
        layer = DraftModelLayer(pool, vocabulary, p_min=0.0, timeout_seconds=PATIENT)
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
        # an agent that begins now has its layer all the same
        later = DraftModelLayer(pool, vocabulary, "later")
        assert later.spec.seconds_per_token > 0
        assert len(later.draft([65], 4, None)) == 0
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
            assert stranger.length(next(iter(stranger._sessions), "")) == 0  # it was never asked
            (status,) = pool.status()
            assert "token 90" in status.reason
        with worker(address, tiny_model):
            assert drafting(session) == expected
            assert states(pool) == [WorkerState.USABLE]
        assert pool.status()[0].departures >= 2
        session.close()
    unfit = [log for log in logs if log.get("state") == "unfit"]
    assert len(unfit) == 1


def test_a_restart_that_nobody_noticed(
    folder: str, tiny_model: Path, foreign_model: Path, vocabulary: Vocabulary
) -> None:
    """While no session uses a worker its checks do."""
    address = f"unix:{folder}/0"
    with WorkerPool([address], **SOON) as pool:  # type: ignore[arg-type]  # as typed there
        with worker(address, tiny_model):
            pool.check_vocabulary(vocabulary)
        with worker(address, foreign_model):
            until(lambda: states(pool) == [WorkerState.UNFIT])


def test_one_that_is_always_busy(folder: str, tiny_model: Path, vocabulary: Vocabulary) -> None:
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


def test_one_that_is_too_slow(folder: str, tiny_model: Path, vocabulary: Vocabulary) -> None:
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


def test_a_text_too_long_for_one(folder: str, tiny_model: Path, vocabulary: Vocabulary) -> None:
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


def test_at_the_start(folder: str, tiny_model: Path, foreign_model: Path, vocabulary: Vocabulary) -> None:
    nobody, stranger, good = (f"unix:{folder}/{name}" for name in ("nobody", "stranger", "good"))
    with WorkerPool([nobody], **SOON) as pool:  # type: ignore[arg-type]  # as typed there
        with pytest.raises(ServiceUnavailableError, match=r"draft-worker --model"):
            pool.check_vocabulary(vocabulary, 0.1)
        with pytest.raises(ServiceUnavailableError):
            pool.describe(0.1)
    with worker(stranger, foreign_model):
        with WorkerPool([nobody, stranger]) as pool:
            caught: list[VocabularyMismatchError] = []

            def unfit() -> bool:
                try:
                    pool.check_vocabulary(vocabulary, 0.2)
                except ServiceUnavailableError:  # a busy machine: the stranger answered too late
                    return False
                except VocabularyMismatchError as error:
                    caught.append(error)
                return True

            until(unfit)
            assert caught[0].rule == "token-text"
            assert "token 90" in str(caught[0])
        with worker(good, tiny_model), WorkerPool([nobody, stranger, good]) as pool:
            checked(pool, vocabulary)
            until(lambda: states(pool) == [WorkerState.GONE, WorkerState.UNFIT, WorkerState.USABLE])
            with pytest.raises(InvalidConfigError, match="one target"):
                pool.check_vocabulary(Vocabulary("BPE", 3, -1, -1, False, False, "x"))
    for wrong in ([], [good, good], ["nonsense"]):
        with pytest.raises(InvalidConfigError):
            WorkerPool(wrong)
    for seconds in ((0.0, 1.0), (2.0, 1.0)):
        with pytest.raises(InvalidConfigError, match="between checks"):
            WorkerPool([good], recheck_seconds=seconds)


def test_agents_that_begin_side_by_side(folder: str, tiny_model: Path, vocabulary: Vocabulary) -> None:
    address = f"unix:{folder}/0"
    with worker(address, tiny_model), WorkerPool([address]) as pool, ThreadPoolExecutor(6) as threads:

        def begin(agent: int) -> list[int]:
            layer = DraftModelLayer(pool, vocabulary, p_min=0.0, timeout_seconds=PATIENT)
            layer.begin([70 + agent], 0.1)
            session = layer.session
            assert isinstance(session, PoolSession)
            found = drafting(session)
            layer.close()
            return found

        found = list(threads.map(begin, range(6)))
        assert all(len(tokens) == 3 for tokens in found)
        assert pool.status()[0].sessions == 0


def test_closing_while_it_looks_for_workers(folder: str, vocabulary: Vocabulary) -> None:
    pool = WorkerPool([f"unix:{folder}/nobody", f"unix:{folder}/either"])
    with ThreadPoolExecutor(1) as thread:
        looking = thread.submit(pool.check_vocabulary, vocabulary, 2 * PATIENT)
        until(lambda: len(pool._checking) == 2)
        pool.close()
        with pytest.raises(ServiceUnavailableError):
            looking.result(PATIENT)


def test_closing_while_it_is_used(folder: str, tiny_model: Path, vocabulary: Vocabulary) -> None:
    address = f"unix:{folder}/0"
    with worker(address, tiny_model):
        pool = WorkerPool([address])
        pool.check_vocabulary(vocabulary)
        session = pool.open_session(p_min=0.0)
        session.set_text([70])
        drafting(session)
        pool.close()
        pool.close()
        for _ in range(3):
            session.append([71])
            assert len(session.draft(3, PATIENT)) == 0
        session.close()

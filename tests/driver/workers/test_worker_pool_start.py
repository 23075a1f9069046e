"""The first check of a pool's workers, and closing a pool."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from suffixsvc.errors import InvalidConfigError, ServiceUnavailableError, VocabularyMismatchError
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.workers.pool.entry import WorkerState
from suffixsvc_driver.workers.pool.pool import WorkerPool
from suffixsvc_driver.workers.pool.pool_session import PoolSession
from suffixsvc_models.vocabulary import Vocabulary
from support.pool_workers import PATIENT, SOON, checked, drafting, states, until, worker


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    names = ("draft-workers", "draft-stream", "llama-server")
    until(lambda: not [thread for thread in threading.enumerate() if thread.name in names])


def test_the_first_check_of_a_pool(
    folder: str, tiny_model: Path, foreign_model: Path, vocabulary: Vocabulary
) -> None:
    absent, stranger, good = (f"unix:{folder}/{name}" for name in ("absent", "stranger", "good"))
    with (
        WorkerPool([absent], **SOON) as pool,  # type: ignore[arg-type]  # as typed there
        pytest.raises(ServiceUnavailableError, match=r"draft-worker --model"),
    ):
        pool.check_vocabulary(vocabulary, 0.1)
    with worker(stranger, foreign_model):
        with WorkerPool([absent, stranger]) as pool:
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
        with worker(good, tiny_model), WorkerPool([absent, stranger, good]) as pool:
            checked(pool, vocabulary)
            until(lambda: states(pool) == [WorkerState.GONE, WorkerState.UNFIT, WorkerState.USABLE])
            with pytest.raises(InvalidConfigError, match="one target"):
                pool.check_vocabulary(Vocabulary("BPE", 3, -1, -1, False, False, "x"))
    for wrong in ([], [good, good], ["nonsense"]):
        with pytest.raises(InvalidConfigError):
            WorkerPool(wrong)
    for seconds in ((0.0, 1.0), (2.0, 1.0)):
        with pytest.raises(InvalidConfigError, match="recheck_seconds must be"):
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
    pool = WorkerPool([f"unix:{folder}/absent", f"unix:{folder}/either"])
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

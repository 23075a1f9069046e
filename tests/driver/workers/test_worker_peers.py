"""A process of another user at a draft worker's socket is sent nothing.

What happened: only the service's clients asked the system who listens on a unix socket. The draft worker's
client connected to ``unix:PATH`` as it was: a user who bound the path before the worker did, or after it had
ended, was sent the text of every generation that asked for a draft.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from suffixsvc.errors import InvalidConfigError, ServiceUnavailableError
from suffixsvc.v1 import draft_worker_pb2 as pb
from suffixsvc.v1 import types_pb2
from suffixsvc_driver.workers.client.grpc_client import DraftWorkerClient
from suffixsvc_driver.workers.pool.pool import WorkerPool
from suffixsvc_models.vocabulary import Vocabulary
from support.other_uid_process import HTTP2_SETTINGS, OTHER_UID, other_uid_process_at
from support.scripted_workers import scripted_worker
from support.serving import PATIENCE_S, eventually, socket_dir

TEXT = list(range(70, 90))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder like /tmp: every user may create files, only owners may remove them."""
    with socket_dir() as folder:
        folder.chmod(0o1777)
        yield folder


def reply(request: pb.WorkerDraftRequest) -> pb.WorkerDraftReply:
    draft = types_pb2.Draft(
        token_ids=np.array([65, 66], "<i4").tobytes(),
        probs=np.array([0.9, 0.9], "<f4").tobytes(),
        sources=bytes([4, 4]),
        match_lens=np.zeros(2, "<i4").tobytes(),
    )
    return pb.WorkerDraftReply(draft=draft, length=request.keep + len(request.new_token_ids) // 4)


def test_a_process_of_another_user_at_a_draft_workers_socket_is_sent_nothing(folder: Path) -> None:
    """Neither the question what it is, nor the text. The refusal is immediate and says what to do."""
    with other_uid_process_at(folder / "s", HTTP2_SETTINGS) as log:
        with DraftWorkerClient(f"unix:{folder}/s") as client:
            session = client.open_session()
            session.set_text(TEXT)
            assert len(session.draft(3, 5.0)) == 0
            session.close()
            assert log.read_bytes() == b""
            assert isinstance(session.last_error, ServiceUnavailableError)
            with pytest.raises(ServiceUnavailableError, match="trusted user") as caught:
                client.describe(PATIENCE_S)
            assert caught.value.got == f"user id {OTHER_UID}"
            assert "draft worker" in str(caught.value.remedy)
        assert log.read_bytes() == b""


def test_a_pool_leaves_out_a_process_of_another_user(folder: Path, vocabulary: Vocabulary) -> None:
    with (
        other_uid_process_at(folder / "s", HTTP2_SETTINGS) as log,
        scripted_worker(f"unix:{folder}/w", vocabulary, reply),
        WorkerPool([f"unix:{folder}/s", f"unix:{folder}/w"]) as pool,
    ):
        pool.check_vocabulary(vocabulary)
        session = pool.open_session()
        session.set_text(TEXT)
        eventually(lambda: len(session.draft(3, PATIENCE_S)), "the other worker drafts")
        session.close()
        assert [status.address for status in pool.status() if not status.reason] == [f"unix:{folder}/w"]
        assert log.read_bytes() == b""


@pytest.mark.parametrize("compared", [True, False])
def test_a_process_of_another_user_in_the_place_of_a_worker_that_ended_is_sent_nothing(
    folder: Path, vocabulary: Vocabulary, compared: bool
) -> None:
    """A channel of gRPC connects again by itself. The worker is found again when it is back."""
    with DraftWorkerClient(f"unix:{folder}/s") as client:
        session = client.open_session()
        session.set_text(TEXT)

        def drafts() -> bool:
            return len(session.draft(3, PATIENCE_S)) > 0

        with scripted_worker(f"unix:{folder}/s", vocabulary, reply):
            if compared:
                client.check_vocabulary(vocabulary)
            eventually(drafts, "the worker drafts")
        (folder / "s").unlink(missing_ok=True)
        with other_uid_process_at(folder / "s", HTTP2_SETTINGS) as log:

            def refused() -> bool:
                assert len(session.draft(3, 5.0)) == 0
                assert log.read_bytes() == b""
                return "trusted user" in str(session.last_error)

            eventually(refused, "the other process is met and refused")
        (folder / "s").unlink()
        with scripted_worker(f"unix:{folder}/s", vocabulary, reply):
            eventually(drafts, "the worker is found again")
        session.close()


def test_describe_waits_for_a_worker_that_starts_later_or_again(folder: Path, vocabulary: Vocabulary) -> None:
    """A channel to a checked socket file never reaches the next listener: every attempt looks again."""
    address = f"unix:{folder}/s"
    with DraftWorkerClient(address) as client, ThreadPoolExecutor(1) as threads:
        for _ in range(2):
            asked = threads.submit(client.describe, PATIENCE_S)
            with scripted_worker(address, vocabulary, reply):
                assert asked.result().instance_id == "scripted"
            (folder / "s").unlink(missing_ok=True)


def test_closing_ends_the_wait_for_a_worker(folder: Path) -> None:
    client = DraftWorkerClient(f"unix:{folder}/s")
    begun = threading.Event()

    def describe() -> str:
        begun.set()
        with pytest.raises(ServiceUnavailableError) as caught:
            client.describe(3600.0)
        return str(caught.value)

    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(describe)
        begun.wait()
        client.close()
        assert "the client is closed" in asked.result(PATIENCE_S)


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="the address of a draft worker must be unix:PATH or"):
        DraftWorkerClient("unix:")

"""What a driver makes of a gRPC draft worker that answers nonsense."""

from __future__ import annotations

import math
import tempfile
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from suffixsvc.errors import (
    ProtocolError,
    ServiceTimeoutError,
    ServiceUnavailableError,
    SuffixError,
    VocabularyMismatchError,
)
from suffixsvc.v1 import draft_worker_pb2 as pb
from suffixsvc.v1 import types_pb2
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets.single import LlamaTarget
from suffixsvc_driver.workers.client.grpc_client import DraftWorkerClient
from suffixsvc_driver.workers.client.session import WorkerSession
from suffixsvc_models.vocabulary import Vocabulary
from support.scripted_workers import scripted_worker
from support.targets import talkative_prompt

PATIENT = 300.0


@pytest.fixture
def address() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="w") as folder:
        yield f"unix:{folder}/s"


def drafted(
    tokens: list[int], probs: list[float] | None = None, parents: list[int] | None = None, source: int = 4
) -> types_pb2.Draft:
    """Whatever a draft message can hold."""
    n = len(tokens)
    return types_pb2.Draft(
        token_ids=np.array(tokens, "<i8").astype("<i4").tobytes(),
        probs=np.array([0.9] * n if probs is None else probs, "<f4").tobytes(),
        parents=b"" if parents is None else np.array(parents, "<i4").tobytes(),
        sources=bytes([source] * n),
        match_lens=np.zeros(n, "<i4").tobytes(),
    )


def length(request: pb.WorkerDraftRequest) -> int:
    return request.keep + len(request.new_token_ids) // 4


#: replies, and whether they are malformed (the client cuts the others to their valid part)
ANSWERS: dict[str, tuple[types_pb2.Draft, bool]] = {
    "outside the vocabulary": (drafted([65, 1_000_000, 66]), False),
    "negative": (drafted([65, -1]), True),
    "ten thousand tokens": (drafted([65] * 10_000), False),
    "a cycle": (drafted([65, 66, 67], parents=[-1, 2, 1]), True),
    "its own parent": (drafted([65, 66], parents=[-1, 1]), True),
    "a parent that is not there": (drafted([65, 66], parents=[-1, 9]), True),
    "NaN": (drafted([65, 66], [0.9, math.nan]), True),
    "infinity": (drafted([65], [math.inf]), True),
    "a negative probability": (drafted([65], [-0.5]), True),
    "an unknown source": (drafted([65], source=200), True),
    "torn": (types_pb2.Draft(token_ids=b"abc"), True),
    "no probabilities": (types_pb2.Draft(token_ids=b"\x41\0\0\0"), True),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_malformed_replies_are_empty_drafts(address: str, vocabulary: Vocabulary, what: str) -> None:
    draft, junk = ANSWERS[what]

    def reply(request: pb.WorkerDraftRequest) -> pb.WorkerDraftReply:
        return pb.WorkerDraftReply(draft=draft, length=length(request))

    with scripted_worker(address, vocabulary, reply), DraftWorkerClient(address) as client:
        client.check_vocabulary(vocabulary)
        session = client.open_session()
        session.set_text([70, 71])
        found = session.draft(5, PATIENT)
        assert len(found) <= 5
        assert (len(found) == 0) is junk
        assert isinstance(session.last_error, ProtocolError) is junk
        session.close()


def test_repeated_malformed_replies_close_the_channel(address: str, vocabulary: Vocabulary) -> None:
    def reply(request: pb.WorkerDraftRequest) -> pb.WorkerDraftReply:
        return pb.WorkerDraftReply(draft=ANSWERS["a cycle"][0], length=length(request))

    with scripted_worker(address, vocabulary, reply), DraftWorkerClient(address) as client:
        session = client.open_session()
        session.set_text([70, 71])
        for _ in range(3):
            assert not session.broken
            assert len(session.draft(5, PATIENT)) == 0
        assert session.broken
        assert client.failures == session.failures >= 3
        session.close()


@pytest.mark.parametrize("claimed", [-5, 0, 1_000_000])
def test_a_length_that_is_a_lie(address: str, vocabulary: Vocabulary, claimed: int) -> None:
    """What a worker claims to hold changes what is sent, never beyond the text."""
    keeps: list[int] = []

    def reply(request: pb.WorkerDraftRequest) -> pb.WorkerDraftReply:
        keeps.append(request.keep)
        return pb.WorkerDraftReply(draft=drafted([65]), length=claimed)

    with scripted_worker(address, vocabulary, reply), DraftWorkerClient(address) as client:
        session = client.open_session()
        session.set_text([70, 71, 72])
        session.draft(5, PATIENT, after=[80])
        session.append([81])
        session.draft(5, PATIENT)
        session.close()
    assert keeps[:2] == [0, 3 if claimed > 3 else 0]


def test_an_error_of_its_own(address: str, vocabulary: Vocabulary) -> None:
    def reply(request: pb.WorkerDraftRequest) -> pb.WorkerDraftReply:
        return pb.WorkerDraftReply(error=types_pb2.ErrorDetail(code=99, message="?"))  # type: ignore[arg-type]  # an unknown code

    with scripted_worker(address, vocabulary, reply), DraftWorkerClient(address) as client:
        session = client.open_session()
        session.set_text([70])
        assert len(session.draft(5, PATIENT)) == 0
        assert isinstance(session.last_error, SuffixError)
        assert session.broken
        session.close()


@pytest.mark.parametrize(
    ("description", "error"),
    [
        ({"seconds_per_token": math.nan}, ProtocolError),
        ({"seconds_per_token": -1.0}, ProtocolError),
        ({"vocab_size": 2**31 - 1, "fingerprint": "x"}, VocabularyMismatchError),
        ({"fingerprint": "x"}, ProtocolError),  # its texts have no end
        ({"vocab_type": "WPM"}, VocabularyMismatchError),
    ],
)
def test_a_malformed_description_is_refused(
    address: str, vocabulary: Vocabulary, description: dict[str, object], error: type[SuffixError]
) -> None:
    with (
        scripted_worker(address, vocabulary, lambda _: pb.WorkerDraftReply(), **description),
        DraftWorkerClient(address) as client,
        pytest.raises(error),
    ):
        client.check_vocabulary(vocabulary)


def test_another_instance_answers(address: str, vocabulary: Vocabulary) -> None:
    """The process was replaced between the description and the reply: no token of it is used."""

    def reply(request: pb.WorkerDraftRequest) -> pb.WorkerDraftReply:
        return pb.WorkerDraftReply(draft=drafted([65]), length=length(request), instance_id="another")

    with scripted_worker(address, vocabulary, reply), DraftWorkerClient(address) as client:
        client.check_vocabulary(vocabulary)
        session = client.open_session()
        session.set_text([70])
        assert len(session.draft(5, PATIENT)) == 0
        assert isinstance(session.last_error, ServiceUnavailableError)
        session.close()


def test_a_hanging_worker_is_given_up_after_ten_seconds(address: str, vocabulary: Vocabulary) -> None:
    """Without a reply for ten seconds the channel is closed, although the connection is open."""
    release, now = threading.Event(), [100.0]

    def reply(request: pb.WorkerDraftRequest) -> pb.WorkerDraftReply:
        assert release.wait(PATIENT)
        return pb.WorkerDraftReply(draft=drafted([65]), length=length(request))

    with scripted_worker(address, vocabulary, reply), DraftWorkerClient(address) as client:
        client.check_vocabulary(vocabulary)
        for long in (False, True):  # a text that is sent ahead is lost after the same time
            session = WorkerSession(
                client._start_channel, client._speed, client._record_failure, clock=lambda: now[0]
            )
            session.set_text([70] * (100 if long else 2))
            assert len(session.draft(5, 0.01)) == 0
            now[0] += 9.0
            assert len(session.draft(5, 0.01)) == 0
            assert not session.broken
            assert (session.late > 0) is not long
            now[0] += 2.0
            assert len(session.draft(5, 0.01)) == 0
            assert session.broken
            assert isinstance(session.last_error, ServiceTimeoutError)
            session.close()
        release.set()


def test_a_generation_is_the_plain_one(
    address: str, vocabulary: Vocabulary, tiny_target: LlamaTarget
) -> None:
    lies: list[Callable[[pb.WorkerDraftRequest], pb.WorkerDraftReply]] = [
        *(lambda r, d=d: pb.WorkerDraftReply(draft=d, length=length(r)) for d, _ in ANSWERS.values()),
        lambda r: pb.WorkerDraftReply(busy=True),
        lambda r: pb.WorkerDraftReply(error=types_pb2.ErrorDetail(code=10, message="gone")),  # type: ignore[arg-type]  # a number, as on the wire
    ]
    count = [0]

    def reply(request: pb.WorkerDraftRequest) -> pb.WorkerDraftReply:
        count[0] += 1
        return lies[count[0] % len(lies)](request)

    prompt = talkative_prompt(tiny_target, 60)
    plain = generate(tiny_target, prompt, max_tokens=60)
    with scripted_worker(address, vocabulary, reply), DraftWorkerClient(address) as client:
        layer = DraftModelLayer(client, vocabulary, p_min=0.0, timeout_seconds=PATIENT)
        result = generate(
            tiny_target,
            prompt,
            DriverConfig(policy="first-match"),
            [layer],
            max_tokens=60,
            curve=CostCurve.linear(0.05, 32),
        )
        layer.close()
    assert result.token_ids == plain.token_ids
    assert layer.session.failures > 3

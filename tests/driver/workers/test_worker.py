"""The draft worker over a real socket, with a real (tiny) model."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from suffixsvc import wire
from suffixsvc.errors import (
    InvalidTokensError,
    LimitExceededError,
    ModelError,
    UnknownSessionError,
    VocabularyMismatchError,
)
from suffixsvc.v1 import draft_worker_pb2 as pb
from suffixsvc.v1 import draft_worker_pb2_grpc
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.single import LlamaTarget
from suffixsvc_driver.workers.client.grpc_client import DraftWorkerClient
from suffixsvc_driver.workers.client.interface import DraftSession
from suffixsvc_driver.workers.server.engine import DraftEngine, DraftRequest, Job
from suffixsvc_driver.workers.server.servicer import DraftWorkerServer, WorkerSettings
from support.idle_calls import IdleCalls, connection, silent_unary
from support.serving import eventually
from support.targets import talkative_prompt
from support.tiny_gguf import SPECIAL, byte_texts, write_tiny_llama
from support.worker_parts import channel_of, draft_alone, session_ids_of, waiting_in

SETTINGS = ContextSettings(
    context_size=512, slots=2, threads=1, max_width=1, flash_attention=False, kv_type="f32"
)
PATIENT = 300.0


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[DraftEngine]:
    engine = DraftEngine(tiny_model, SETTINGS)
    yield engine
    engine.close()


@pytest.fixture
def client(engine: DraftEngine, socket_path: str) -> Iterator[DraftWorkerClient]:
    # on a machine under load even an idle worker may not start within a few milliseconds
    server = DraftWorkerServer(engine, f"unix:{socket_path}", WorkerSettings(busy_after_seconds=PATIENT))
    server.start()
    with DraftWorkerClient(server.address) as client:
        yield client
    server.stop()


def test_describe_and_vocabulary(client: DraftWorkerClient, tiny_target: LlamaTarget, tmp_path: Path) -> None:
    vocabulary = tiny_target.model.vocabulary
    description = client.check_vocabulary(vocabulary)
    assert description.vocabulary.fingerprint == vocabulary.fingerprint
    assert description.seconds_per_token > 0
    assert description.context_size == 512
    assert description.parameters == tiny_target.model.parameters
    assert client.vocabulary(description).texts == vocabulary.texts
    other = [*byte_texts(), *SPECIAL]
    other[90], other[91] = other[91], other[90]
    path = write_tiny_llama(tmp_path / "other.gguf", texts=other)
    with (
        LlamaTarget(path, ContextSettings(threads=1)) as stranger,
        pytest.raises(VocabularyMismatchError, match=r"token 90") as caught,
    ):
        client.check_vocabulary(stranger.model.vocabulary)
    assert caught.value.rule == "token-text"


def test_generation_with_a_draft_model(client: DraftWorkerClient, tiny_target: LlamaTarget) -> None:
    """The model as its own draft: everything is accepted, and the text is the plain one."""
    prompt = talkative_prompt(tiny_target, 40)
    plain = generate(tiny_target, prompt, max_tokens=40)
    layer = DraftModelLayer(client, tiny_target.model.vocabulary, p_min=0.0, timeout_seconds=PATIENT)
    config = DriverConfig(policy="first-match")
    result = generate(tiny_target, prompt, config, [layer], max_tokens=40, curve=CostCurve.linear(0.05, 32))
    assert result.token_ids == plain.token_ids
    assert result.stats.acceptance_rate == 1.0
    assert result.stats.mat > 4
    assert result.stats.evidence["draft-model"].output_tokens == result.stats.accepted
    # the next prompt of the same agent shares a prefix: only the rest travels
    longer = [*prompt, *plain.token_ids[:20], 66, 67]
    held = generate(tiny_target, longer, config, [layer], max_tokens=10, curve=CostCurve.linear(0.05, 32))
    assert held.token_ids == generate(tiny_target, longer, max_tokens=10).token_ids
    layer.close()


class Gate:
    """Holds the model's thread before its next batch."""

    def __init__(self, engine: DraftEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.open = threading.Event(), threading.Event()
        real = engine.step

        def step(jobs: Sequence[Job]) -> None:
            self.entered.set()
            assert self.open.wait(PATIENT)
            real(jobs)

        monkeypatch.setattr(engine, "step", step)

    def enter(self, session: DraftSession) -> None:
        """Ask until a question hangs at the gate: on a busy machine its time may be over before."""
        deadline = time.monotonic() + PATIENT
        while not self.entered.is_set():
            assert len(session.draft(4, 0.05)) == 0
            assert time.monotonic() < deadline


def patient_draft(session: DraftSession, count: int) -> list[int]:
    """Ask until there is a draft."""
    deadline = time.monotonic() + PATIENT
    while not len(draft := session.draft(count, PATIENT)):
        assert time.monotonic() < deadline, session.last_error
        time.sleep(0.01)
    return [int(token) for token in draft.token_ids]


def test_a_late_answer_is_dropped_and_the_text_caught_up(
    engine: DraftEngine, client: DraftWorkerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = draft_alone(engine, DraftRequest("x", 0, [70, 71, 72, 73], 4)).token_ids.tolist()
    gate = Gate(engine, monkeypatch)
    session = client.open_session(p_min=0.0)
    session.set_text([70, 71, 72])
    gate.enter(session)
    late = session.late
    assert len(session.draft(4, PATIENT)) == 0  # still outstanding: not even asked
    assert session.late == late + 1
    session.append([73])
    gate.open.set()
    assert patient_draft(session, 4) == expected
    session.close()


def test_a_text_begun_while_an_answer_is_outstanding(
    engine: DraftEngine, client: DraftWorkerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late answer speaks of the text before: taken for the new one's, the worker would go on behind a
    mixture of the two."""
    expected = draft_alone(engine, DraftRequest("x", 0, [70, 71, 90, 91, 92], 4)).token_ids.tolist()
    gate = Gate(engine, monkeypatch)
    session = client.open_session(p_min=0.0)
    session.set_text([70, 71, 72, 73])
    gate.enter(session)
    session.set_text([70, 71, 90, 91, 92])
    gate.open.set()
    assert patient_draft(session, 4) == expected
    session.close()


def test_a_draft_continues_another(engine: DraftEngine, client: DraftWorkerClient) -> None:
    """The chain is not part of the text, what the target took of it is, and nothing is computed twice."""
    read: list[int] = []
    text, chain = [70, 71, 72, 73], [80, 81, 82]

    def expected(context: list[int]) -> list[int]:
        return draft_alone(engine, DraftRequest(f"{context}", 0, context, 4)).token_ids.tolist()

    wanted = [expected(text + chain), expected([*text, 80, 99]), expected([*text, 80, 99, *chain])]
    for name in session_ids_of(engine):
        engine.forget(name)
    decode = engine.context.decode

    def counted(tokens: Sequence[int], start: int, slot: int, *, logits: bool) -> None:
        read.extend([start] * (not logits) * len(tokens))
        decode(tokens, start, slot, logits=logits)

    engine.context.decode = counted  # type: ignore[method-assign]  # a watch on what is computed
    session = client.open_session(p_min=0.0)
    session.set_text(text)
    assert session.draft(4, PATIENT, after=chain).token_ids.tolist() == wanted[0]
    assert len(read) == len(text) + len(chain) - 1
    session.append([80, 99])  # one of the chain was accepted, then the target's own
    assert session.draft(4, PATIENT).token_ids.tolist() == wanted[1]
    assert session.draft(4, PATIENT, after=chain).token_ids.tolist() == wanted[2]
    assert read[len(text) + len(chain) - 1 :] == [6, 6]  # the last question's 99 is in the KV already
    session.append(chain)
    assert len(session.draft(4, PATIENT)) == 4
    assert len(read) == len(text) + len(chain) - 1 + 2
    assert engine.length(session.session_id) == len(text) + 2 + len(chain)
    session.close()


def test_a_chain_the_worker_cannot_take_does_not_end_the_session(client: DraftWorkerClient) -> None:
    session = client.open_session(p_min=0.0)
    session.set_text([70, 71, 72])
    assert len(session.draft(4, PATIENT, after=[100_000])) == 0
    assert isinstance(session.last_error, InvalidTokensError)
    assert len(session.draft(4, PATIENT, after=[73])) == 4
    session.close()


def test_sessions_side_by_side_whatever_happens_to_them(
    tiny_model: Path, engine: DraftEngine, socket_path: str
) -> None:
    """Random texts, chains, new texts and late replies, three concurrent clients: every draft is what the
    model emits after that very context, and all counters are right."""
    worker = DraftEngine(tiny_model, SETTINGS, batch_width=2)
    server = DraftWorkerServer(worker, f"unix:{socket_path}", WorkerSettings(busy_after_seconds=PATIENT))
    server.start()
    asked: list[tuple[int, list[int], list[int]]] = []

    def drive(seed: int) -> int:
        rng = random.Random(seed)
        with DraftWorkerClient(server.address) as client:
            session = client.open_session(p_min=0.0)
            text = rng.choices(range(32, 127), k=30)
            session.set_text(text)
            chain: list[int] = []
            for _ in range(60):
                if rng.random() < 0.1:
                    text = text[: rng.randrange(1, len(text))] + rng.choices(range(32, 127), k=9)
                    session.set_text(text)
                new = [
                    *chain[: rng.randrange(len(chain) + 1)],
                    *rng.choices(range(32, 127), k=rng.randrange(3)),
                ]
                session.append(new)
                text = text + new
                chain = rng.choices(range(32, 127), k=rng.randrange(4))
                channel = channel_of(session)
                if channel is not None and channel.outstanding and rng.random() < 0.8:
                    channel.wait(PATIENT)  # the late answer comes before the next question, or not
                seconds = 1e-4 if rng.random() < 0.2 else PATIENT
                draft = session.draft(4, seconds, chain)
                asked.append((seed, text + chain, draft.token_ids.tolist()))
            assert session.failures == 0, session.last_error
            patient_draft(session, 4)
            session.close()
            return session.late

    with ThreadPoolExecutor(3) as threads:
        late = list(threads.map(drive, range(3)))
    server.stop()
    worker.close()
    assert sum(late) > 3
    assert sum(bool(found) for _, _, found in asked) > 100
    for seed, context, found in asked:
        expected = draft_alone(engine, DraftRequest("x", 0, context, len(found))).token_ids.tolist()
        assert found == expected, f"seed {seed}"


def test_busy_has_no_side_effects(
    engine: DraftEngine, socket_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two concurrent callers: the second is refused at once, without side effects."""
    server = DraftWorkerServer(engine, f"unix:{socket_path}")
    assert 0.005 <= server.scheduler.busy_after_seconds < 1.0
    server.start()
    gate = Gate(engine, monkeypatch)
    with DraftWorkerClient(server.address) as client, ThreadPoolExecutor(2) as threads:
        first, second = client.open_session(p_min=0.0), client.open_session(p_min=0.0)
        first.set_text([1, 2])
        second.set_text([3, 4])
        answer = threads.submit(patient_draft, first, 3)
        assert gate.entered.wait(PATIENT)
        assert len(second.draft(3, PATIENT)) == 0
        assert second.busy == 1
        assert engine.length(second.session_id) == 0
        # a request whose client prefers to wait
        patient = client.open_session(p_min=0.0, wait_seconds=PATIENT)
        patient.set_text([5])
        waiting = threads.submit(patient.draft, 3, PATIENT)
        deadline = time.monotonic() + PATIENT
        while not waiting_in(server.scheduler):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        gate.open.set()
        assert len(answer.result()) == 3
        assert len(waiting.result()) == 3
        assert len(patient_draft(second, 3)) == 3
        for session in (first, second, patient):
            session.close()
    server.stop()


def test_a_lost_session_gets_the_text_again(engine: DraftEngine, client: DraftWorkerClient) -> None:
    session = client.open_session(p_min=0.0)
    session.set_text([80, 81, 82])
    expected = session.draft(3, PATIENT).token_ids.tolist()
    for name in session_ids_of(engine):
        engine.forget(name)
    assert len(session.draft(3, PATIENT)) == 0
    assert isinstance(session.last_error, UnknownSessionError)
    assert session.draft(3, PATIENT).token_ids.tolist() == expected
    session.close()


def test_a_text_the_worker_cannot_hold_is_not_sent_again(client: DraftWorkerClient) -> None:
    session = client.open_session()
    session.set_text([1] * 600)
    deadline = time.monotonic() + PATIENT
    while session.last_error is None and time.monotonic() < deadline:
        assert len(session.draft(3, 1.0)) == 0
        time.sleep(0.01)
    assert isinstance(session.last_error, LimitExceededError)
    session.set_text([1] * 6)
    session.draft(3, PATIENT)
    session.close()


def test_more_drivers_than_a_worker_serves(engine: DraftEngine, socket_path: str) -> None:
    server = DraftWorkerServer(
        engine, f"unix:{socket_path}", WorkerSettings(drivers=1, busy_after_seconds=PATIENT)
    )
    server.start()
    with DraftWorkerClient(server.address) as client:
        first, second = client.open_session(p_min=0.0), client.open_session(p_min=0.0)
        for session in (first, second):
            session.set_text([70, 71])
        patient_draft(first, 3)
        assert len(second.draft(3, PATIENT)) == 0
        assert second.broken
        assert isinstance(second.last_error, LimitExceededError)
        assert "--drivers" in str(second.last_error.remedy)
        assert client.describe().context_size == 512  # Describe still works
        first.close()
        patient_draft(second, 3)
        second.close()
    server.stop()


def test_calls_beyond_the_threads_of_a_worker_wait(engine: DraftEngine, socket_path: str) -> None:
    """What happened: gRPC refused them, so that a flood of resets made a worker look dead."""
    server = DraftWorkerServer(engine, f"unix:{socket_path}", WorkerSettings(drivers=1))
    server.start()
    describe = silent_unary("/suffixsvc.v1.DraftWorker/Describe")
    with connection(server.address) as channel:
        with IdleCalls(server.address, 30, describe) as idle:
            stub = draft_worker_pb2_grpc.DraftWorkerStub(channel)
            waiting = stub.Describe.future(pb.DescribeRequest(), timeout=PATIENT)
            assert not idle.ended()
        assert waiting.result().context_size == 512
    server.stop()


def test_a_worker_whose_model_failed_once_says_so_and_goes_on(
    engine: DraftEngine, client: DraftWorkerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: it refused every client from then on."""

    def broken(_jobs: Sequence[Job]) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(engine, "step", broken)
    session = client.open_session(p_min=0.0)
    session.set_text([70, 71])
    eventually(lambda: len(session.draft(3, PATIENT)) == 0 and session.broken, "not only busy")
    assert isinstance(session.last_error, ModelError)
    monkeypatch.undo()
    assert client.describe(PATIENT)
    after = client.open_session(p_min=0.0)
    after.set_text([70, 71])
    eventually(lambda: len(after.draft(3, PATIENT)) == 3, "it is busy for a moment at most")


def test_garbage_on_the_wire_is_answered_typed(client: DraftWorkerClient) -> None:
    requests = [
        pb.WorkerDraftRequest(seq=1, session_id="a", new_token_ids=b"123", max_draft_tokens=3),
        pb.WorkerDraftRequest(seq=2, session_id="", max_draft_tokens=3),
        pb.WorkerDraftRequest(seq=3, session_id="a", keep=-5),
        pb.WorkerDraftRequest(seq=4, session_id="a", new_token_ids=b"\x01\x00\x00\x00", max_draft_tokens=2),
    ]
    with client.connected() as worker:
        stub = worker.stub
        replies = list(stub.Draft(iter(requests), timeout=PATIENT))
    assert [r.seq for r in replies] == [1, 2, 3, 4]
    assert [r.HasField("error") for r in replies] == [True, True, True, False]
    assert isinstance(wire.error_from_detail(replies[0].error), InvalidTokensError)
    assert replies[3].length == 1

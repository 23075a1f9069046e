"""llama-server as draft worker: vocabulary, drafts, probabilities and restarts."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from suffixsvc.errors import LimitExceededError, ServiceUnavailableError, VocabularyMismatchError
from suffixsvc.types import Draft
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.single import LlamaTarget
from suffixsvc_driver.workers.client.interface import DraftSession
from suffixsvc_driver.workers.llama_server.protocol import completion_request
from suffixsvc_driver.workers.llama_server.worker import LlamaServerClient
from suffixsvc_driver.workers.pool.entry import WorkerState
from suffixsvc_driver.workers.pool.pool import WorkerPool
from suffixsvc_driver.workers.server.engine import DraftEngine, DraftRequest
from support.llama_tools import Note, RunningServer, Tools, serving
from support.tiny_gguf import write_tiny_llama
from support.worker_parts import draft_alone

pytestmark = pytest.mark.interop

CONTEXT = 512
PATIENT = 120.0
PROMPT = "The months of the year are January, February, March,"
DRAFTED = 12


@pytest.fixture(scope="module")
def server(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(tools, log, "-c", str(2 * CONTEXT), "-np", "2") as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[LlamaServerClient]:
    with LlamaServerClient(f"http://{server.address}") as client:
        yield client


@pytest.fixture(scope="module")
def target(tools: Tools) -> Iterator[LlamaTarget]:
    with LlamaTarget(tools.model, ContextSettings(CONTEXT, threads=1)) as target:
        yield target


def ask(session: DraftSession, count: int = DRAFTED, after: tuple[int, ...] = ()) -> Draft:
    deadline = time.monotonic() + PATIENT
    while not len(draft := session.draft(count, PATIENT, after)):
        assert time.monotonic() < deadline, session.last_error
        time.sleep(0.01)
    return draft


def test_the_vocabulary_is_that_of_the_file(
    client: LlamaServerClient, target: LlamaTarget, tools: Tools, note: Note
) -> None:
    """The bytes of every id over HTTP give the fingerprint of the file."""
    vocabulary = target.model.vocabulary
    description = client.check_vocabulary(vocabulary)
    assert client.vocabulary(description) == vocabulary
    assert description.model == tools.model.name
    assert description.context_size == CONTEXT
    assert description.parameters == target.model.parameters
    assert description.seconds_per_token > 0
    note(
        "llama-server",
        "as draft worker: kind, size, special ids and the bytes of every id, asked over HTTP",
        f"those of the file: {vocabulary.size} ids, the same fingerprint",
    )


def test_it_drafts_as_our_worker_does(
    client: LlamaServerClient, target: LlamaTarget, tools: Tools, note: Note
) -> None:
    """With the same model both give the same tokens, and the same probabilities up to rounding."""
    engine = DraftEngine(tools.model, ContextSettings(CONTEXT, slots=2, threads=1, max_width=1))
    client.check_vocabulary(target.model.vocabulary)
    session = client.open_session(p_min=0.0)
    text = target.model.tokenize(PROMPT)
    session.set_text(text)
    compared = differing = 0
    for after in ((), tuple(target.model.tokenize(" April, May"))):
        found = ask(session, after=after)
        ours = draft_alone(engine, DraftRequest("s", 0, [*text, *after], DRAFTED))
        same = int((found.token_ids == ours.token_ids).cumprod().sum())
        assert same > DRAFTED // 2, (found.token_ids, ours.token_ids)
        np.testing.assert_allclose(found.probs[:same], ours.probs[:same], atol=0.1)
        compared, differing = compared + same, differing + DRAFTED - same
    engine.close()
    session.close()
    note(
        "llama-server",
        "as draft worker: greedy drafts and probabilities beside those of `suffixsvc draft-worker`",
        f"the same {compared} tokens, probabilities within 0.1"
        + (f"; {differing} after a near-tie differ" if differing else ""),
    )


def test_characters_of_several_tokens(
    server: RunningServer, client: LlamaServerClient, target: LlamaTarget, note: Note
) -> None:
    """The server returns a probability for the last token of a character only, so that its lists differ in
    length: the draft ends before the first token without a probability."""
    model = target.model
    text = model.tokenize("🙂🙃" * 8)
    last = next(i for i in range(20, len(text)) if model.token_bytes(text[i]) == "🙃".encode()[-1:])
    reply = json.loads(server.ask("/completion", completion_request(text[:last], DRAFTED, 10)))
    assert len(reply["tokens"]) == DRAFTED > len(reply["completion_probabilities"])
    client.check_vocabulary(model.vocabulary)
    session = client.open_session(p_min=0.0)
    session.set_text(text[:last])
    draft = ask(session)
    assert draft.token_ids.tolist() == reply["tokens"][: len(draft)] == [text[last]]
    assert session.failures == 0
    session.close()
    note(
        "llama-server",
        "as draft worker: characters that are several tokens",
        "a probability comes with the last token of each only; the draft ends before the first without one",
    )


def test_a_generation_with_it(server: RunningServer, target: LlamaTarget, tools: Tools, note: Note) -> None:
    """With the same model as target most drafted tokens are accepted, and the prompt is evaluated once."""
    text = target.model.tokenize(PROMPT)
    with LlamaServerClient(f"http://{server.address}") as client:
        layer = DraftModelLayer(client, target.model.vocabulary, p_min=0.0, timeout_seconds=PATIENT)
        result = generate(
            target,
            text,
            DriverConfig(policy="first-match", k_start=8, k_min=8, k_max=8),
            [layer],
            max_tokens=64,
            curve=CostCurve.linear(0.05, 32),
        )
        layer.close()
    assert result.stats.acceptance_rate > 0.8
    assert layer.session.failures == 0
    note(
        "llama-server",
        "as draft worker: a generation of 64 tokens with the same model as target",
        f"{result.stats.acceptance_rate:.0%} of what it drafted accepted",
    )


def test_texts_it_cannot_hold(client: LlamaServerClient, target: LlamaTarget) -> None:
    client.check_vocabulary(target.model.vocabulary)
    session = client.open_session(p_min=0.0)
    session.set_text([1000] * (CONTEXT + 50))
    deadline = time.monotonic() + PATIENT
    while session.last_error is None:
        assert len(session.draft(4, PATIENT)) == 0
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert isinstance(session.last_error, LimitExceededError)
    session.set_text([1000] * 5)
    assert len(ask(session, 4)) == 4
    session.close()


def test_connections_that_the_server_closes(client: LlamaServerClient, target: LlamaTarget) -> None:
    """The server closes a connection after a hundred answers; no request is lost."""
    client.check_vocabulary(target.model.vocabulary)
    session = client.open_session(p_min=0.0)
    session.set_text([1000] * 5)
    for _ in range(220):
        assert len(session.draft(1, PATIENT)) == 1
    assert (session.late, session.failures, session.busy) == (0, 0, 0)
    session.close()


def test_it_restarts_with_another_model(
    tools: Tools, target: LlamaTarget, tmp_path: Path, note: Note
) -> None:
    """The worker is not used until the right model is back."""
    foreign = Tools(tools.folder, write_tiny_llama(tmp_path / "tiny.gguf"))
    small = ("-c", str(CONTEXT), "-np", "1")
    with serving(tools, tmp_path / "1.log", *small) as first:
        port = first.address.rpartition(":")[2]
        pool = WorkerPool([f"http://{first.address}"], recheck_seconds=(0.1, 0.2), check_every_seconds=0.2)
        with (
            LlamaServerClient(f"http://{first.address}") as other,
            LlamaTarget(foreign.model, ContextSettings(256, threads=1)) as tiny,
            pytest.raises(VocabularyMismatchError),
        ):
            other.check_vocabulary(tiny.model.vocabulary)
        pool.check_vocabulary(target.model.vocabulary)
        session = pool.open_session(p_min=0.0)
        session.set_text([1000] * 5)
        expected = ask(session, 4).token_ids.tolist()
        os.kill(first.pid, signal.SIGKILL)
        assert len(session.draft(4, PATIENT)) == 0
    with serving(foreign, tmp_path / "2.log", *small, port=port):
        until(lambda: pool.status()[0].state is WorkerState.UNFIT)
        assert len(session.draft(4, PATIENT)) == 0
    with serving(tools, tmp_path / "3.log", *small, port=port):
        until(lambda: pool.status()[0].state is WorkerState.USABLE)
        assert ask(session, 4).token_ids.tolist() == expected
        session.close()
        pool.close()
    with pytest.raises(ServiceUnavailableError), LlamaServerClient(f"http://127.0.0.1:{port}") as stopped:
        stopped.describe(1.0)
    note(
        "llama-server",
        "as draft worker: killed, started again with another model, then with the first",
        "left out while its vocabulary does not fit, then used again",
    )


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)

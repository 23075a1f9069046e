"""A draft model of the server: a worker process that drafts, is killed, or is paused while answers run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import openai
from suffixsvc.runtime.child_process import ChildProcess
from suffixsvc_driver.layers.draft_models import DraftProcess
from suffixsvc_driver.profile.settings_file import LayerSettings
from suffixsvc_openai.app.run import OpenAIServer
from suffixsvc_openai.engine.drafting import DraftingSettings
from support.openai_serving import (
    CYCLE,
    LANES,
    client_of,
    cycle_text,
    idle,
    running,
    settings_of,
    stream_on_every_lane,
)
from support.tiny_gguf import chain_of, write_tiny_chain

#: the draft model alone drafts
ALONE = DraftingSettings(
    prompt_lookup=LayerSettings(enabled=False),
    suffix=LayerSettings(enabled=False),
    process=DraftProcess(context_size=2048, slots=LANES, batch=1),
)


def drafting(draft: Path | str) -> DraftingSettings:
    return DraftingSettings(ALONE.prompt_lookup, ALONE.suffix, draft=str(draft), process=ALONE.process)


@pytest.fixture
def drafted(cycle: Path) -> Iterator[OpenAIServer]:
    """A server of the cycle with itself as its draft model."""
    with running(settings_of(cycle, drafting=drafting(cycle))) as server:
        yield server


def worker_of(server: OpenAIServer) -> ChildProcess:
    models = server.service.engine.drafting.models
    assert models is not None
    assert models.process is not None
    return models.process


def by_draft_model(answer: Any) -> int:
    found: int = answer.metrics["speculative_decoding"]["tokens_by_source"]["draft-model"]
    return found


def complete(client: openai.OpenAI, tokens: int = 40) -> Any:
    return client.completions.create(model="cycle", prompt="xyzab", max_tokens=tokens, temperature=0)


def test_a_draft_model_drafts(drafted: OpenAIServer) -> None:
    """How many tokens depends on the machine: a late draft is no draft."""
    with client_of(drafted) as client:
        for _ in range(50):
            answer = complete(client)
            assert answer.choices[0].text == cycle_text("b", 40)
            if by_draft_model(answer) > 20:
                break
        else:
            pytest.fail("the worker has drafted next to nothing")
        without = client.completions.create(
            model="cycle", prompt="xyzab", max_tokens=40, temperature=0,
            extra_body={"suffixsvc": {"speculation": False}},
        )  # fmt: skip
    assert without.choices[0].text == cycle_text("b", 40)
    assert by_draft_model(without) == 0
    idle(drafted)


def _kill(worker: ChildProcess) -> None:
    os.kill(worker.pid, signal.SIGKILL)


def _pause(worker: ChildProcess) -> None:
    os.kill(worker.pid, signal.SIGSTOP)


@pytest.mark.parametrize("harm", [_kill, _pause])
def test_a_worker_that_is_lost_costs_no_answer(
    drafted: OpenAIServer, harm: Callable[[ChildProcess], None]
) -> None:
    """On every lane a stream is under way; all end with the right text, and so do later ones."""
    texts = stream_on_every_lane(drafted, 700, lambda: harm(worker_of(drafted)))
    assert texts == [cycle_text("b", 700)] * LANES
    with client_of(drafted) as client:
        for _ in range(3):
            answer = complete(client)
            assert answer.choices[0].text == cycle_text("b", 40)
            assert by_draft_model(answer) == 0
    idle(drafted)


def test_a_worker_of_another_vocabulary_drafts_through_text(cycle: Path, tmp_path: Path) -> None:
    follows = chain_of(CYCLE)
    other = write_tiny_chain(tmp_path / "pairs.gguf", follows, context=2048, pairs=["ab", "cd"])
    with running(settings_of(cycle, drafting=drafting(other))) as server, client_of(server) as client:
        models = server.service.engine.drafting.models
        assert models is not None
        assert models.through_text is not None
        assert complete(client).choices[0].text == cycle_text("b", 40)
        idle(server)

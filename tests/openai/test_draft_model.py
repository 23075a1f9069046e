"""A draft model of the server: a worker process that drafts, is killed, or is paused while answers run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

import openai
from suffixsvc.runtime.child_process import ChildProcess, ChildProcesses
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
from support.serving import PATIENCE_S, eventually, socket_dir
from support.tiny_gguf import chain_of, write_tiny_chain

#: the draft model alone drafts
ALONE = DraftingSettings(
    prompt_lookup=LayerSettings(enabled=False),
    suffix=LayerSettings(enabled=False),
    process=DraftProcess(context_size=2048, slots=LANES, batch=1),
)


def drafting(draft: Path | str, **process: Any) -> DraftingSettings:
    """``process``: other fields of the worker's settings."""
    settings = replace(ALONE.process, **process)
    return DraftingSettings(ALONE.prompt_lookup, ALONE.suffix, draft=str(draft), process=settings)


@pytest.fixture
def drafted(cycle: Path) -> Iterator[OpenAIServer]:
    """A server of the cycle with itself as its draft model."""
    with running(settings_of(cycle, drafting=drafting(cycle))) as server:
        yield server


def worker_of(server: OpenAIServer) -> ChildProcess:
    models = server.service.engine.drafting.models
    assert models is not None
    assert models.process is not None
    return models.process.child


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


def up(server: OpenAIServer) -> str:
    """The value of the gauge; "" without one."""
    lines = httpx.get(f"http://{server.address}/metrics", timeout=PATIENCE_S).text.splitlines()
    return "".join(line.split()[-1] for line in lines if line.startswith("suffixsvc:draft_model_up{"))


def test_a_worker_that_was_killed_is_started_again(cycle: Path) -> None:
    """As often as the settings allow, with the right texts all the time; then the server goes on without."""
    settings = drafting(cycle, restarts=1, pause_seconds=0.1)
    with running(settings_of(cycle, drafting=settings)) as server, client_of(server) as client:
        for left in (1, 0):
            worker = worker_of(server)
            assert up(server) == "1.0"
            texts = stream_on_every_lane(server, 700, lambda: worker.kill())  # noqa: B023  # called at once
            assert texts == [cycle_text("b", 700)] * LANES
            if left:
                eventually(lambda: worker_of(server) is not worker, "it is started again")  # noqa: B023
                eventually(lambda: by_draft_model(complete(client)) > 20, "it drafts")
        assert complete(client).choices[0].text == cycle_text("b", 40)
        assert up(server) == "0.0"
        assert worker_of(server) is worker
        idle(server)


def test_a_server_stops_while_it_starts_a_worker_again(cycle: Path) -> None:
    settings = drafting(cycle, restarts=9, pause_seconds=0.0)
    with running(settings_of(cycle, drafting=settings)) as server:
        process = server.service.engine.drafting.models.process  # type: ignore[union-attr]
        assert process is not None
        before = process._children._children
        worker_of(server).kill()
        eventually(lambda: process._children._children is not before, "one is being started")
        starting = process._children._children[-1]
    assert not starting.running
    assert not process._thread.is_alive()


def test_a_worker_is_not_started_again_during_a_drain(cycle: Path) -> None:
    """A supervisor that stops all processes of a unit made the server load the model again."""
    settings = drafting(cycle, restarts=9, pause_seconds=0.0)
    with running(settings_of(cycle, drafting=settings)) as server:
        process = server.service.engine.drafting.models.process  # type: ignore[union-attr]
        assert process is not None
        before = process._children._children
        server.drain()
        worker_of(server).kill()
        time.sleep(2.0)  # it would be started within half a second
        assert process._children._children is before


def test_the_gauge_follows_a_worker_at_an_address(cycle: Path, server: OpenAIServer) -> None:
    assert up(server) == "", "a server without draft models has none"
    with socket_dir() as folder, ChildProcesses(folder) as children:
        address = f"unix:{children.folder / 'draft.sock'}"

        def start() -> ChildProcess:
            return children.start_draft_worker(cycle, address, threads=1, slots=LANES)

        worker = start()
        with running(settings_of(cycle, drafting=drafting(address))) as served, client_of(served) as client:
            assert up(served) == "1.0"
            worker.kill()
            eventually(lambda: complete(client) and up(served) == "0.0", "the gauge shows its end")
            start()
            eventually(lambda: complete(client) and up(served) == "1.0", "the gauge shows its return")
            idle(served)


def test_a_worker_of_another_vocabulary_drafts_through_text(cycle: Path, tmp_path: Path) -> None:
    follows = chain_of(CYCLE)
    other = write_tiny_chain(tmp_path / "pairs.gguf", follows, context=2048, pairs=["ab", "cd"])
    with running(settings_of(cycle, drafting=drafting(other))) as server, client_of(server) as client:
        models = server.service.engine.drafting.models
        assert models is not None
        assert models.through_text is not None
        assert complete(client).choices[0].text == cycle_text("b", 40)
        idle(server)

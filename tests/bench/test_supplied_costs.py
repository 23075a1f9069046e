"""Supplied costs, and a real draft model that is waited for."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from suffixsvc_bench.decode.options import DecodeOptions
from suffixsvc_bench.decode.pricing.supplied_costs import (
    SuppliedCostRow,
    read_supplied_costs,
    replay_at_costs,
)
from suffixsvc_bench.decode.variants.variants import settings_for
from suffixsvc_bench.decode.workload.jobs import AnsweredJob, Job
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.sampling.settings import GREEDY
from suffixsvc_driver.settings.model_class import ModelClass
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.single import LlamaTarget
from suffixsvc_driver.workers.client.grpc_client import DraftWorkerClient
from suffixsvc_driver.workers.server.engine import DraftEngine
from suffixsvc_driver.workers.server.servicer import DraftWorkerServer, WorkerSettings
from suffixsvc_models.vocabulary import Vocabulary
from support.targets import WIDTH_INDEPENDENT, talkative_prompt
from support.tiny_gguf import write_tiny_llama

SETTINGS = ContextSettings(
    context_size=512, slots=2, threads=1, max_width=17, flash_attention=False, kv_type="f32"
)


def replayed_at_costs(
    model: Path,
    settings: ContextSettings,
    calls: list[AnsweredJob],
    warmup: list[AnsweredJob],
    layers: list[str],
    vocabulary: Vocabulary,
    eog_ids: frozenset[int],
) -> list[SuppliedCostRow]:
    """By a worker that is really there."""
    ways = settings_for(
        DecodeOptions((Path("m.gguf"),), policies=("expected-gain",), ks=(), layers=tuple(layers)),
        GREEDY,
        ModelClass.MOE,
    )
    engine = DraftEngine(model, settings)
    with tempfile.TemporaryDirectory(prefix="w") as folder:
        server = DraftWorkerServer(engine, f"unix:{folder}/s", WorkerSettings(busy_after_seconds=30.0))
        server.start()
        try:
            with DraftWorkerClient(server.address) as client:
                return replay_at_costs(
                    "w",
                    calls,
                    warmup,
                    ways,
                    read_supplied_costs("gpu"),
                    vocabulary.size,
                    eog_ids,
                    lambda p_min: DraftModelLayer(client, vocabulary, p_min=0.0, timeout_seconds=60.0),
                )
        finally:
            server.stop()
            engine.close()


@pytest.mark.parametrize("length", [10, 120])
def test_a_draft_model_drafts_after_short_and_long_prompts(length: int, tmp_path: Path) -> None:
    """A long prompt is read ahead of the first question, which is waited for here like any other. The model
    drafts for itself, so that all it drafts is right."""
    model = write_tiny_llama(tmp_path / "tiny.gguf", seed=7)
    with LlamaTarget(model, WIDTH_INDEPENDENT) as target:
        prompt = tuple(talkative_prompt(target, length))
        text = generate(target, prompt, max_tokens=48).token_ids
        eog_ids, vocabulary = target.eog_ids, target.model.vocabulary
    calls = [AnsweredJob(Job(f"j{i}", "agent", prompt, len(text)), text) for i in range(2)]
    [row] = replayed_at_costs(model, SETTINGS, calls, [], ["draft-model"], vocabulary, eog_ids)
    assert row.drafted == row.accepted > len(text)
    assert row.by_layer == {"draft-model": row.accepted}
    assert row.speedup > 1.5


def test_correct_suggestions_cost_no_pass(tmp_path: Path) -> None:
    """Memory knows the text but for every ninth token, and cannot be sure of anything; the model drafts for
    itself and is always right. Where it looks at what memory has, the same steps cost less."""
    model = write_tiny_llama(tmp_path / "tiny.gguf", seed=7)
    with LlamaTarget(model, WIDTH_INDEPENDENT) as target:
        prompt = tuple(talkative_prompt(target, 10))
        text = generate(target, prompt, max_tokens=96).token_ids
        eog_ids, vocabulary = target.eog_ids, target.model.vocabulary
    job = Job("j", "agent", prompt, len(text))
    known = tuple(token if i % 9 else (token + 1) % 200 for i, token in enumerate(text))
    fast, slow = (
        replayed_at_costs(
            model,
            replace(SETTINGS, max_width=width),
            [AnsweredJob(job, text)] * 3,
            [AnsweredJob(job, known)],
            ["all"],
            vocabulary,
            eog_ids,
        )[0]
        for width in (17, 1)
    )
    assert fast.by_layer["draft-model"] > 0
    assert fast.speedup > slow.speedup > 1.5

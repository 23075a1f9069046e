"""Supplied prices, and a real draft model that is waited for."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from suffixsvc_bench.decode.jobs import Job, Written
from suffixsvc_bench.decode.priced import PricedRow, price_calls, read_prices
from suffixsvc_bench.decode.variants import settings_for
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.loop import generate
from suffixsvc_driver.sampling import GREEDY
from suffixsvc_driver.targets.llama import LlamaTarget
from suffixsvc_driver.targets.llama_context import ContextSettings
from suffixsvc_driver.vocabulary import Vocabulary
from suffixsvc_driver.workers.client import DraftWorkerClient
from suffixsvc_driver.workers.engine import DraftEngine
from suffixsvc_driver.workers.server import DraftWorkerServer
from support.targets import WIDTH_INDEPENDENT, talkative_prompt
from support.tiny_gguf import write_tiny_llama

SETTINGS = ContextSettings(
    context_size=512, slots=2, threads=1, max_width=17, flash_attention=False, kv_type="f32"
)


def priced(
    model: Path,
    settings: ContextSettings,
    calls: list[Written],
    warming: list[Written],
    layers: list[str],
    vocabulary: Vocabulary,
    eog_ids: frozenset[int],
) -> list[PricedRow]:
    """By a worker that is really there."""
    ways = settings_for(policies=["expected-gain"], ks=[], layers=layers, sampling=GREEDY, model_class=None)
    engine = DraftEngine(model, settings)
    with tempfile.TemporaryDirectory(prefix="w") as folder:
        server = DraftWorkerServer(engine, f"unix:{folder}/s", busy_after_seconds=30.0)
        server.start()
        try:
            with DraftWorkerClient(server.address) as client:
                return price_calls(
                    "w",
                    calls,
                    warming,
                    ways,
                    read_prices("gpu"),
                    vocabulary.size,
                    eog_ids,
                    lambda p_min: DraftModelLayer(client, vocabulary, p_min=0.0, timeout_seconds=60.0),
                )
        finally:
            server.stop()
            engine.close()


@pytest.mark.parametrize("length", [10, 120])
def test_a_draft_model_drafts_behind_short_prompts_and_long_ones(length: int, tmp_path: Path) -> None:
    """A long prompt is read ahead of the first question, which is waited for here like any other. The model
    drafts for itself, so that all it drafts is right."""
    model = write_tiny_llama(tmp_path / "tiny.gguf", seed=7)
    with LlamaTarget(model, WIDTH_INDEPENDENT) as target:
        prompt = tuple(talkative_prompt(target, length))
        text = generate(target, prompt, max_tokens=48).token_ids
        eog_ids, vocabulary = target.eog_ids, target.model.vocabulary
    calls = [Written(Job("w", f"j{i}", "agent", prompt, len(text)), text) for i in range(2)]
    [row] = priced(model, SETTINGS, calls, [], ["draft-model"], vocabulary, eog_ids)
    assert row.drafted == row.accepted > len(text)
    assert row.by_layer == {"draft-model": row.accepted}
    assert row.speedup > 1.5


def test_what_is_suggested_and_right_costs_no_pass(tmp_path: Path) -> None:
    """Memory knows the text but for every ninth token, and cannot be sure of anything; the model drafts for
    itself and is always right. Where it looks at what memory has, the same steps cost less."""
    model = write_tiny_llama(tmp_path / "tiny.gguf", seed=7)
    with LlamaTarget(model, WIDTH_INDEPENDENT) as target:
        prompt = tuple(talkative_prompt(target, 10))
        text = generate(target, prompt, max_tokens=96).token_ids
        eog_ids, vocabulary = target.eog_ids, target.model.vocabulary
    job = Job("w", "j", "agent", prompt, len(text))
    known = tuple(token if i % 9 else (token + 1) % 200 for i, token in enumerate(text))
    fast, slow = (
        priced(
            model,
            replace(SETTINGS, max_width=width),
            [Written(job, text)] * 3,
            [Written(job, known)],
            ["all"],
            vocabulary,
            eog_ids,
        )[0]
        for width in (17, 1)
    )
    assert fast.by_layer["draft-model"] > 0
    assert fast.speedup > slow.speedup > 1.5

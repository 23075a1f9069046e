"""Supplied prices, and a real draft model that is waited for."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from suffixsvc_bench.decode.jobs import Job, Written
from suffixsvc_bench.decode.priced import price_calls, read_prices
from suffixsvc_bench.decode.variants import settings_for
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.loop import generate
from suffixsvc_driver.sampling import GREEDY
from suffixsvc_driver.targets.llama import LlamaTarget
from suffixsvc_driver.targets.llama_context import ContextSettings
from suffixsvc_driver.workers.client import DraftWorkerClient
from suffixsvc_driver.workers.engine import DraftEngine
from suffixsvc_driver.workers.server import DraftWorkerServer
from support.targets import WIDTH_INDEPENDENT, talkative_prompt
from support.tiny_gguf import write_tiny_llama

SETTINGS = ContextSettings(
    context_size=512, slots=2, threads=1, max_width=1, flash_attention=False, kv_type="f32"
)


@pytest.mark.parametrize("length", [10, 120])
def test_a_draft_model_drafts_behind_short_prompts_and_long_ones(length: int, tmp_path: Path) -> None:
    """A long prompt is read ahead of the first question, which is waited for here like any other. The model
    drafts for itself, so that all it drafts is right."""
    model = write_tiny_llama(tmp_path / "tiny.gguf", seed=7)
    with LlamaTarget(model, WIDTH_INDEPENDENT) as target:
        prompt = tuple(talkative_prompt(target, length))
        text = generate(target, prompt, max_tokens=48).token_ids
        eog_ids, vocabulary = target.eog_ids, target.model.vocabulary
    settings = settings_for(
        policies=["expected-gain"], ks=[], layers=["draft-model"], sampling=GREEDY, model_class=None
    )
    calls = [Written(Job("w", f"j{i}", "agent", prompt, len(text)), text) for i in range(2)]
    engine = DraftEngine(model, SETTINGS)
    with tempfile.TemporaryDirectory(prefix="w") as folder:
        server = DraftWorkerServer(engine, f"unix:{folder}/s", busy_after_seconds=30.0)
        server.start()
        try:
            with DraftWorkerClient(server.address) as client:
                [row] = price_calls(
                    "w",
                    calls,
                    [],
                    settings,
                    read_prices("gpu"),
                    vocabulary.size,
                    eog_ids,
                    lambda p_min: DraftModelLayer(client, vocabulary, p_min=0.0, timeout_seconds=60.0),
                )
        finally:
            server.stop()
            engine.close()
    assert row.drafted == row.accepted > len(text)
    assert row.by_layer == {"draft-model": row.accepted}
    assert row.speedup > 1.5

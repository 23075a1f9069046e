"""``suffixsvc bench preload`` on the recipes that come along."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from suffixsvc_bench.preload.live import run_live
from suffixsvc_bench.preload.replayed import held_out_calls
from suffixsvc_bench.preload.tables import live_speedups
from suffixsvc_caches.recipes import READY_MADE, find_recipe, make_recipe
from suffixsvc_cli import main
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.targets.llama.context_settings import ContextSettings
from suffixsvc_driver.targets.single import LlamaTarget


@pytest.mark.parametrize("name", READY_MADE)
def test_held_out_calls_are_not_in_the_corpus(name: str) -> None:
    recipe = find_recipe(name)
    held_out = {call.session for call in held_out_calls(recipe)}
    assert held_out
    assert recipe.reading.filter.kinds == {"train"}
    calls = [json.loads(line) for line in gzip.decompress(recipe.corpus.read_bytes()).splitlines()]
    corpus = {call["session_id"] for call in calls}
    assert not held_out & corpus


def test_the_verb_compares(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "preload", "sql", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["replay"]
    assert row["recipe"] == "sql"
    assert row["tokens"] == row["ours"][0]["tokens"] == row["ours"][1]["tokens"]
    # A cache of the same kind of answers helps on others of the kind, or it would be of no use.
    assert row["server"][1]["mat"] > row["server"][0]["mat"]
    assert row["ours"][1]["mean_accepted_tokens"] > row["ours"][0]["mean_accepted_tokens"]
    assert main(["bench", "preload", "sql"]) == 0
    assert "preloaded" in capsys.readouterr().out


@pytest.mark.model
def test_the_model_answers_three_times(real_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    with LlamaTarget(real_model, ContextSettings(threads=1)) as target:
        fingerprint = target.model.vocabulary.fingerprint
        prompt = target.model.tokenize("The capital of France is")
        call = {"prompt_token_ids": prompt, "response_token_ids": prompt, "tokenizer": fingerprint}
        (folder / "log.jsonl").write_text(json.dumps(call) + "\n")
        (folder / "recipe.toml").write_text(
            f'about = "t"\ntokenizer = "{fingerprint}"\n[logs]\npaths = ["log.jsonl"]\n'
        )
        recipe = find_recipe(str(folder))
        make_recipe(recipe)
        [call] = held_out_calls(recipe)  # no filter: all of the log
        row = run_live(recipe, target, CostCurve.linear(0.5, 32), [call, call], 8)
    assert all(len(row[name]) == 2 for name in ("plain_s", "cold_s", "preloaded_s", "tokens"))
    assert all(each > 0 for each in live_speedups(row))
    assert sum(row["tokens"]) <= 16

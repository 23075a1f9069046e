"""Learning starting weights from logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from suffixsvc.core import new_learner
from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.replay.inputs import read_weights
from suffixsvc_cli.bench import app


def log(path: Path, first: int) -> Path:
    calls = [{"response_token_ids": [*range(first, first + 20)] * 2, "agent": "a"} for _ in range(4)]
    path.write_text("".join(json.dumps(call) + "\n" for call in calls), encoding="utf-8")
    return path


def run(*args: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_same_logs_give_the_same_weights(tmp_path: Path) -> None:
    logs = [log(tmp_path / "one.jsonl", 10), log(tmp_path / "two.jsonl", 90)]
    for name in ("a", "b"):
        run("train", *logs, "--out", tmp_path / name)
    data = (tmp_path / "a").read_bytes()
    assert data == (tmp_path / "b").read_bytes()
    assert new_learner(data).save() != new_learner(b"").save()


def test_one_log_is_left_out_and_scored_with_what_the_others_taught(tmp_path: Path) -> None:
    logs = [log(tmp_path / "one.jsonl", 10), log(tmp_path / "two.jsonl", 90)]
    run("train", *logs, "--out", tmp_path / "folder", "--leave-one-out")
    run("train", logs[1], "--out", tmp_path / "two alone")
    assert read_weights(tmp_path / "folder", "one") == (tmp_path / "two alone").read_bytes()
    options = ["--method", "ours-linear", "--cost", "0.05", "--no-sweep", "--json"]
    with_weights = json.loads(run("replay", *logs, *options, "--starting-weights", tmp_path / "folder"))
    shipped = json.loads(run("replay", *logs, *options))
    assert [t["name"] for t in with_weights["traces"]] == ["one", "two"]
    assert with_weights["traces"] != shipped["traces"]


def test_invalid_inputs_are_refused(tmp_path: Path) -> None:
    only = log(tmp_path / "one.jsonl", 10)
    with pytest.raises(InvalidInputError, match="logs must be at least 2"):
        run("train", only, "--out", tmp_path / "folder", "--leave-one-out")
    (tmp_path / "folder").mkdir()
    for place in ("folder", "one.jsonl/x/weights.bin"):  # before anything is learned
        with pytest.raises(InvalidInputError, match="must be writable"):
            run("train", only, "--out", tmp_path / place)
    with pytest.raises(InvalidInputError, match="starting weights"):
        run("replay", only, "--starting-weights", tmp_path, "--method", "ours-linear")

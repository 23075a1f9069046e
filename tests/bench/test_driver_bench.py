"""The benchmark of the driver's own time measures every step of a log; nothing here is timed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.driver.run import run_driver_bench

LOG = Path(__file__).parents[1] / "data" / "recorded_demo.jsonl.gz"


def test_every_step_is_measured(tmp_path: Path) -> None:
    """An answer of the text before it needs fewer steps than tokens; the first step of an answer begins the
    layers, and is not counted."""
    answer = [7, 8, 9, *range(20, 40)]
    log = tmp_path / "log.jsonl"
    log.write_text(
        "".join(
            json.dumps({"prompt_token_ids": [1, 2, 3], "response_token_ids": answer}) + "\n" for _ in range(3)
        )
    )
    found = run_driver_bench(log, 3, 2, lambda _task, _done: None)
    warm, cold = found["times"]
    assert (warm["caches"], cold["caches"]) == ("warm", "cold")
    assert 0 < warm["steps"] == cold["steps"] < 3 * (len(answer) - 1)
    assert 0 < warm["drafts"] == cold["drafts"]
    assert 0 < warm["p10_us"] <= warm["p50_us"] <= warm["p90_us"]


def test_a_log_without_steps_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"prompt_token_ids": [1], "response_token_ids": [2]}) + "\n")
    with pytest.raises(InvalidInputError, match="must have a call with a response of two tokens"):
        run_driver_bench(log, 3, 1, lambda _task, _done: None)


def test_json() -> None:
    options = ("--calls", "2", "--repetitions", "1", "--json")
    run = subprocess.run(
        [sys.executable, "-m", "suffixsvc_cli", "bench", "driver", str(LOG), *options],
        check=True,
        capture_output=True,
        text=True,
    )
    out = json.loads(run.stdout)
    assert [times["caches"] for times in out["times"]] == ["warm", "cold"]
    assert out["log"] == LOG.name

"""The segment benchmark measures what it says, on a small size; nothing here is timed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.index.parts.segment import SMALLEST, measure_segment
from suffixsvc_caches.sizes import parse_count


def test_sizes() -> None:
    sizes = [parse_count(s, "--sizes", SMALLEST) for s in ("1M", "250k", "60000")]
    assert sizes == [1_000_000, 250_000, 60_000]
    for bad in ("", "M", "1G", "1K"):
        with pytest.raises(InvalidInputError, match="--sizes must be a number, at least 50000"):
            parse_count(bad, "--sizes", SMALLEST)


def test_figures(tmp_path: Path) -> None:
    figures = measure_segment(50_000, tmp_path)
    assert figures["tokens"] == 50_000
    assert 8 < figures["bytes_per_token"] <= 16  # small: the alphabet weighs
    assert figures["draft_us_p50"] > 0
    assert list(tmp_path.iterdir()) == []


def test_json() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "suffixsvc_cli", "bench", "segment", "--sizes", "50K", "--json"],
        check=True,
        capture_output=True,
        text=True,
    )
    out = json.loads(run.stdout)
    assert out["seed"] == 1
    assert out["provenance"]["cpu"] is not None
    assert [size["tokens"] for size in out["sizes"]] == [50_000]

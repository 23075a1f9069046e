"""The segment benchmark measures what it says, on a small size; nothing here is timed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from suffixsvc_bench.index.segment import SegmentFigures, TextMaker, measure_segment, parse_size


def test_sizes() -> None:
    assert [parse_size(s) for s in ("1M", "250k", "60000")] == [1_000_000, 250_000, 60_000]
    for bad in ("", "M", "1G", "1K"):
        with pytest.raises(ValueError):  # noqa: PT011 - int() words some of these
            parse_size(bad)


def test_texts_are_those_of_the_seed() -> None:
    one, two = (TextMaker(50_000, 3).text(5_000) for _ in range(2))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, TextMaker(50_000, 4).text(5_000))


def test_figures(tmp_path: Path) -> None:
    figures = measure_segment(50_000, tmp_path)
    assert isinstance(figures, SegmentFigures)
    assert figures.tokens == 50_000
    assert 8 < figures.bytes_per_token <= 16  # small: the alphabet weighs
    assert figures.draft_us_p50 > 0
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

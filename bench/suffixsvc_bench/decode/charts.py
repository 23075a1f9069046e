"""What came out, as pictures: speed and acceptance against K, and each workload's ways side by side."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from suffixsvc.plots import COLOURS, Chart, Series

__all__ = ["decode_charts"]

_FIXED: Final = re.compile(r"^K = (\d+)$")


def decode_charts(measured: Mapping[str, Any]) -> list[Chart]:
    """From :meth:`Measured.as_dict`; no pictures of a sweep where no fixed K was run."""
    rows = measured["rows"]
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    sweep = {w: _sweep(rows, w) for w in workloads}
    if not any(len(points) > 1 for points in sweep.values()):
        return []
    speed, acceptance = [], []
    for i, workload in enumerate(workloads):
        colour = i % COLOURS
        points = sweep[workload]
        speed.append(Series(f"{workload}, fixed K", [(k, r["speedup"]["value"]) for k, r in points], colour))
        acceptance.append(Series(workload, [(k, r["acceptance"]) for k, r in points], colour))
        gain = next((r for r in rows if r["workload"] == workload and r["variant"] == "expected-gain"), None)
        if gain is not None and points:
            level = gain["speedup"]["value"]
            ends = [(points[0][0], level), (points[-1][0], level)]
            speed.append(Series(f"{workload}, expected gain", ends, colour, dashed=True))
    ticks = sorted({float(k) for points in sweep.values() for k, _ in points})
    return [
        Chart(
            "Speed against K",
            "Tokens per second over plain decoding of the same calls, in pairs. A fixed K drafts K tokens "
            "whenever the first layer has three; the dashed lines are the default, which weighs what a draft "
            "gains against what its verification costs here.",
            "K, drafted tokens",
            "times plain decoding",
            speed,
            level=1.0,
            x_ticks=ticks,
        ),
        Chart(
            "Acceptance against K",
            "Share of the drafted tokens that the target agreed with.",
            "K, drafted tokens",
            "accepted / drafted",
            acceptance,
            percent_y=True,
            x_ticks=ticks,
        ),
    ]


def _sweep(rows: Sequence[Mapping[str, Any]], workload: str) -> list[tuple[float, Mapping[str, Any]]]:
    found = []
    for row in rows:
        match = _FIXED.match(row["variant"])
        if row["workload"] == workload and match:
            found.append((float(match[1]), row))
    return sorted(found, key=lambda point: point[0])

"""Plots of `bench decode`: possible gain at the measured costs, every single call, speed and acceptance
against K.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from suffixsvc.plots import COLOURS, Chart, Series

_CAPTIONS: Final = tomllib.loads(Path(__file__).with_name("captions.toml").read_text(encoding="utf-8"))
_FIXED: Final = re.compile(r"^K = (\d+)$")
#: probability that a drafted token is accepted, given that its predecessor was
_ACCEPTANCES: Final = (0.6, 0.8, 0.9, 0.95, 1.0)


def decode_charts(measured: Mapping[str, Any]) -> list[Chart]:
    """All plots, from :meth:`Measured.as_dict`."""
    return [_possible(measured), *_calls(measured), *k_charts(measured)]


def _possible(measured: Mapping[str, Any]) -> Chart:
    costs = measured["curve"]["costs"]
    series = [
        Series(f"{p:.0%} accepted", [(k, _tokens(p, k) / costs[k + 1]) for k in range(len(costs) - 1)], i)
        for i, p in enumerate(_ACCEPTANCES)
    ]
    return Chart(
        "What a draft of K tokens can bring",
        _CAPTIONS["possible"].format(target=measured["target"]),
        "K, drafted tokens",
        "times plain decoding",
        series,
        level=1.0,
    )


def _tokens(acceptance: float, k: int) -> float:
    """Expected tokens of a step: the accepted ones and the bonus token."""
    return sum(acceptance**i for i in range(k + 1))


def _calls(measured: Mapping[str, Any]) -> list[Chart]:
    variants: dict[str, list[float]] = {}
    for found in measured["pairs"].values():
        for name, pairs in found.items():
            variants.setdefault(name, []).extend(pair["ratio"] for pair in pairs)
    series = [
        Series(name, [((i + 0.5) / len(ratios), r) for i, r in enumerate(sorted(ratios))], n % COLOURS)
        for n, (name, ratios) in enumerate(variants.items())
    ]
    if all(len(each.points) < 2 for each in series):
        return []
    return [
        Chart(
            "Every call, from the worst to the best",
            _CAPTIONS["calls"],
            "share of the calls",
            "times plain decoding",
            series,
            level=1.0,
        )
    ]


def k_charts(measured: Mapping[str, Any]) -> list[Chart]:
    """Speed and acceptance against K; empty without a sweep over fixed K."""
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
            _CAPTIONS["speed"],
            "K, drafted tokens",
            "times plain decoding",
            speed,
            level=1.0,
            x_ticks=ticks,
        ),
        Chart(
            "Acceptance against K",
            "Share of the drafted tokens that the target accepted.",
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

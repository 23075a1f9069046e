"""Plots of the index benchmark, from its JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from suffixsvc.plots import Chart, Series

_MEMORY: Final = """Bytes per token of the index in memory, while outputs are added. A token alone takes 4;
Arctic's tree, at the largest size at which it is measured: {peer}."""
_INGEST: Final = """Microseconds to add a token, outputs of {output_tokens} tokens one after the other,
between two sizes. On a level line a token costs the same in a large index as in a small one."""
_STEP: Final = """Median microseconds of a draft of up to {max_draft_tokens} tokens, by the tokens in the
index. New text: outputs that are not in the index; known text: outputs that are, so that whole drafts are
accepted. Dashed: Arctic's tree of depth 24 in the same run, up to the size at which it is measured."""
_REMOVAL: Final = """Share of the bytes that remain while all outputs are removed, the oldest first."""
_RESTART: Final = """Seconds from opening the folder to the first draft, in a fresh process, by the tokens in
it."""


def index_charts(results: Mapping[str, Any]) -> list[Chart]:
    """Plots of the results of :func:`run_index_bench`; charts without points are omitted."""
    texts: Mapping[str, Any] = results["texts"]
    options: Mapping[str, Any] = results["options"]
    by_size = (
        (
            "Memory of the hot index",
            _words(_MEMORY, peer=_peer_bytes(texts)),
            "bytes per token",
            _series(texts, lambda t: [(p["tokens"], p["bytes"] / p["tokens"]) for p in t["growth"]]),
        ),
        (
            "Adding a token",
            _words(_INGEST, **options),
            "microseconds",
            _series(texts, lambda t: _between(t["growth"])),
        ),
        (
            "A draft, by the size of the index",
            _words(_STEP, **options),
            "microseconds, median",
            _steps(texts),
        ),
    )
    x = "tokens in the index"
    charts = [Chart(title, about, x, y, series, log_x=True) for title, about, y, series in by_size]
    left = _series(
        texts, lambda t: [(p["tokens"], p["bytes"] / t["removal"][0]["bytes"]) for p in t["removal"]]
    )
    removal = ("Removing everything again", _words(_REMOVAL), "tokens left", "bytes left")
    charts.append(Chart(*removal, left, percent_y=True))
    if restart := results.get("restart"):
        points = [(float(at["tokens"]), float(at["first_draft_s"])) for at in restart["sizes"]]
        head = ("Restart", _words(_RESTART), "tokens in the folder", "seconds to the first draft")
        charts.append(Chart(*head, [Series(restart["kind"], points, 0)], log_x=True))
    return [chart for chart in charts if any(series.points for series in chart.series)]


def _words(text: str, **values: object) -> str:
    return " ".join(text.format(**values).split())


def _series(texts: Mapping[str, Any], points: Any) -> list[Series]:
    return [Series(name, points(text), colour) for colour, (name, text) in enumerate(texts.items())]


def _between(growth: Sequence[Mapping[str, float]]) -> list[tuple[float, float]]:
    """Microseconds per token between two measurements, at the later one."""
    points = [{"tokens": 0.0, "seconds": 0.0}, *growth]
    return [
        (b["tokens"], (b["seconds"] - a["seconds"]) / (b["tokens"] - a["tokens"]) * 1e6)
        for a, b in pairwise(points)
    ]


def _steps(texts: Mapping[str, Any]) -> list[Series]:
    series = []
    for number, (name, text) in enumerate(texts.items()):
        for offset, sort in enumerate(("new text", "known text")):
            colour = 2 * number + offset
            for prefix, key in (("", "draft_us"), ("Arctic, ", "peer draft_us")):
                points = [
                    (float(at["tokens"]), float(at["steps"][sort][key]["p50"]))
                    for at in text["sizes"]
                    if key in at["steps"][sort]
                ]
                if points:
                    series.append(Series(f"{prefix}{name}, {sort}", points, colour, dashed=bool(prefix)))
    return series


def _peer_bytes(texts: Mapping[str, Any]) -> str:
    key, found = "peer_resident_bytes_per_token", []
    for name, text in texts.items():
        values = [at[key] for at in text["sizes"] if key in at]
        if values:
            found.append(f"{values[-1]:.0f} ({name})")
    return ", ".join(found) or "not measured here"

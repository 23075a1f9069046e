"""Plots of the index benchmark, from its JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from suffixsvc.plots import Chart, Series

__all__ = ["index_charts"]

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
    charts = [
        Chart(
            "Memory of the hot index",
            _words(_MEMORY, peer=_peer_bytes(texts)),
            "tokens in the index",
            "bytes per token",
            _series(texts, lambda t: [(p["tokens"], p["bytes"] / p["tokens"]) for p in t["growth"]]),
            log_x=True,
        ),
        Chart(
            "Adding a token",
            _words(_INGEST, **options),
            "tokens in the index",
            "microseconds",
            _series(texts, lambda t: _between(t["growth"])),
            log_x=True,
        ),
        Chart(
            "A draft, by the size of the index",
            _words(_STEP, **options),
            "tokens in the index",
            "microseconds, median",
            _steps(texts),
            log_x=True,
        ),
        Chart(
            "Removing everything again",
            _words(_REMOVAL),
            "tokens left",
            "bytes left",
            _series(
                texts,
                lambda t: [(p["tokens"], p["bytes"] / t["removal"][0]["bytes"]) for p in t["removal"]],
            ),
            percent_y=True,
        ),
    ]
    restart = results.get("restart")
    if restart is not None:
        points = [(float(at["tokens"]), float(at["first_draft_s"])) for at in restart["sizes"]]
        charts.append(
            Chart(
                "Restart",
                _words(_RESTART),
                "tokens in the folder",
                "seconds to the first draft",
                [Series(restart["kind"], points, 0)],
                log_x=True,
            )
        )
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

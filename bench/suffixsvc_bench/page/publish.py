"""Tables and plots of benchmark results as one Markdown page with SVG files beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc.plots import Chart
from suffixsvc.plots.files import svg_file
from suffixsvc_bench.build.tables import build_grids
from suffixsvc_bench.decode.charts import decode_charts, k_charts
from suffixsvc_bench.decode.pricing.supplied_costs import supplied_costs_heading
from suffixsvc_bench.decode.tables import (
    against_grid,
    decode_grid,
    failure_sentences,
    forecast_grid,
    priced_grid,
)
from suffixsvc_bench.index.charts import index_charts
from suffixsvc_bench.index.parts.segment import segment_grids
from suffixsvc_bench.index.tables import index_grids, removal_line, restart_grid
from suffixsvc_bench.replay.document import read_comparison
from suffixsvc_bench.replay.grids import describe, headline_grids, summary_grids
from suffixsvc_bench.replay.report import charts
from suffixsvc_bench.report.provenance import Provenance
from suffixsvc_bench.report.tables import Grid, markdown_grid
from suffixsvc_bench.rpc.report import rpc_parts
from suffixsvc_bench.serving.tables import http_parts

_TEXTS: Final = Path(__file__).parent
#: additional runs of bench decode: file name and heading
_MORE_DECODE_RUNS: Final = {
    "decode-layers": "### Layers by themselves",
    "decode-k": "### Speed against K",
    "decode-temperature": "### Speed against temperature",
    "decode-draft": "### With a draft model",
}
#: a paragraph of the page, or a chart in it
Part = str | Chart


def publish(measured: Path, page: Path, *, keep: bool = False) -> list[Path]:
    """Write the page and its plots; return the files written.

    Args:
        measured: a folder with the ``--json`` outputs of the verbs: replay.json, index.json, segment.json,
            rpc.json, build.json, decode.json, http.json; and additional runs of bench decode, which become
            subsections of it: decode-layers.json (single layers), decode-k.json (a sweep over K),
            decode-temperature.json and decode-draft.json (with a draft model).
        page: the page; plots go into a folder of the same name beside it, where old plots are removed. The
            JSON of bench decode is copied there with every pair.
        keep: keep the page's sections that have no file here; otherwise they are removed. Unknown sections
            are removed in any case.

    Raises:
        InvalidInputError: there are no results, a file cannot be read, or the page cannot be written.
    """
    parts: list[Part] = [_text("introduction")]
    found = 0
    try:
        old_sections = _sections_of(page) if keep else {}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"the page {page} must be readable", got=str(error)) from None
    for name, (heading, section) in _SECTIONS.items():
        path = measured / f"{name}.json"
        if path.is_file():
            found += 1
            parts += [heading, *section(path)]
        elif heading in old_sections:
            parts.append(old_sections[heading])
    if not found:
        raise InvalidInputError(
            f"{measured} must contain results", expected=", ".join(f"{name}.json" for name in _SECTIONS)
        )
    try:
        return [*_write(page, parts), *_pairs(measured, page)]
    except OSError as error:
        raise InvalidInputError(f"the page {page} must be writable", got=str(error)) from None


def _sections_of(page: Path) -> dict[str, str]:
    """Sections of an existing page, by heading."""
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    found = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    return {section.splitlines()[0]: section.strip() for section in found if section.startswith("## ")}


def _pairs(measured: Path, page: Path) -> list[Path]:
    """Write the results of bench decode, with every pair, beside the page."""
    written = []
    for name in ("decode", *_MORE_DECODE_RUNS):
        path = measured / f"{name}.json"
        if path.is_file():
            data = json.loads(path.read_text(encoding="utf-8"))
            written.append(page.with_suffix("") / path.name)
            written[-1].write_text(json.dumps(data) + "\n", encoding="utf-8")
    return written


def _write(page: Path, parts: Sequence[Part]) -> list[Path]:
    if page.is_dir() or not page.suffix:
        raise InvalidInputError("--page must be a file with a suffix such as .md", got=str(page))
    folder = page.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    shown = "\n".join(part for part in parts if isinstance(part, str))
    for old in folder.glob("*.svg"):
        if f"({folder.name}/{old.name})" not in shown:
            old.unlink()
    lines, written = [], [page]
    for part in parts:
        if isinstance(part, str):
            lines.append(part)
            continue
        name = re.sub(r"[^a-z0-9]+", "-", part.title.lower()).strip("-") + ".svg"
        (folder / name).write_text(svg_file(part), encoding="utf-8")
        written.append(folder / name)
        lines.append(f"![{part.title}]({folder.name}/{name})\n\n{part.caption}")
    page.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    return written


def _replay(path: Path) -> list[Part]:
    found = read_comparison(path)
    results, plan = found.results, found.plan
    traces = "\n".join(f"* {describe(result)}" for result in results)
    return [
        _text("drafting"),
        _reproduction(found.provenance),
        *map(markdown_grid, headline_grids(results, plan)),
        *charts(results, plan),
        "### Every method",
        *map(markdown_grid, summary_grids(results, plan)),
        f"The traces:\n\n{traces}",
    ]


def _index(path: Path) -> list[Part]:
    results = _read(path, ("provenance", "options", "texts", "restart"))
    parts: list[Part] = [_text("index"), _reproduction(Provenance(**results["provenance"]))]
    for name, grid in index_grids(results):
        parts += [markdown_grid(grid), removal_line(results["texts"][name])]
    if results["restart"] is not None:
        parts += ["### Restart", _text("restart"), markdown_grid(restart_grid(results["restart"]))]
    return [*parts, *index_charts(results)]


def _plain(
    path: Path, keys: Sequence[str], parts: Callable[[Mapping[str, Any]], Sequence[Grid | str]]
) -> list[Part]:
    """A section of the tables and sentences that the verb prints."""
    results = _read(path, ("provenance", *keys))
    made = _reproduction(Provenance(**results["provenance"]))
    shown = [markdown_grid(part) if isinstance(part, Grid) else part for part in parts(results)]
    return [_text(path.stem), made, *shown]


def _decode(path: Path) -> list[Part]:
    parts: list[Part] = [_text("decode")]
    runs = [(path, "", decode_charts)]
    runs += [(path.with_name(f"{name}.json"), head, k_charts) for name, head in _MORE_DECODE_RUNS.items()]
    for file, heading, charts_of in runs:
        if file.is_file():
            results = _read(file, ("provenance", "options", "rows", "forecasts"))
            parts += [heading, _text(file.stem)] if heading else []
            parts += [*_run(results, file.name), *charts_of(results)]
    return parts


def _run(results: Mapping[str, Any], beside: str) -> list[Part]:
    """One run of bench decode, whose pairs are in the file ``beside``."""
    parts: list[Part] = [
        _reproduction(Provenance(**results["provenance"])),
        _decoded(results, beside),
        markdown_grid(decode_grid(results)),
        *(f"{sentence}." for sentence in failure_sentences(results)),
        "Compared with the forecast of a replay of the same calls:",
        markdown_grid(forecast_grid(results)),
    ]
    others = against_grid(results)
    if others is not None:
        first = results["rows"][0]["variant"]
        parts += [f"Tokens per second of {first} over those of the other ways, same calls:"]
        parts.append(markdown_grid(others))
    for name, rows in results["priced"].items():
        parts += [
            f"#### {supplied_costs_heading(name, results['prices'][name])}",
            f"{results['prices'][name]}.",
            markdown_grid(priced_grid(rows)),
        ]
    return parts


def _decoded(results: Mapping[str, Any], beside: str) -> str:
    costs = results["curve"]["costs"]
    widths = ", ".join(f"{w}: {costs[w]:.1f}" for w in (2, 4, 8, 16, 32) if w < len(costs))
    draft = f", drafts by {results['draft']}" if results["draft"] else ""
    return (
        f"{results['target']}{draft}, {results['threads']} threads. Cost of a step by tokens, in plain "
        f"steps: {widths}. Every pair is in {beside}, beside the plots."
    )


#: file name -> heading, and function that makes the section
_SECTIONS: Final[dict[str, tuple[str, Callable[[Path], list[Part]]]]] = {
    "replay": ("## Drafting", _replay),
    "index": ("## The index", _index),
    "segment": ("## Sealed segments", lambda path: _plain(path, ("seed", "sizes"), segment_grids)),
    "rpc": ("## Over the wire", lambda path: _plain(path, ("options", "timings"), rpc_parts)),
    "build": ("## Building caches", lambda path: _plain(path, ("options",), build_grids)),
    "decode": ("## Decoding on a real model", _decode),
    "http": (
        "## The server beside llama-server",
        lambda path: _plain(path, ("options", "rows", "figures"), http_parts),
    ),
}


def _text(section: str) -> str:
    return (_TEXTS / f"{section}.md").read_text(encoding="utf-8").strip()


def _reproduction(origin: Provenance) -> str:
    busy = " The machine was under load: times are too high." if origin.load > origin.cores / 2 else ""
    command = f" To repeat it:\n\n    {origin.command}" if origin.command else ""
    return f"Made by {origin.line()}.{busy}{command}"


def _read(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        missing = [key for key in keys if key not in data]
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise InvalidInputError(f"{path} must be readable", got=str(error)[:200]) from None
    if missing:
        raise InvalidInputError(f"{path} must have the keys {', '.join(keys)}", got=f"no {missing[0]}")
    return data  # type: ignore[no-any-return] # looked up by key above

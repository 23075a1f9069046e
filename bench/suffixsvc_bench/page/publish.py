"""Tables and plots of the last runs as one Markdown page with SVG files beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc.plots import Chart
from suffixsvc.plots.files import svg_file
from suffixsvc_bench.build_bench.tables import build_grids
from suffixsvc_bench.decode.charts import decode_charts, k_charts
from suffixsvc_bench.decode.priced import priced_heading
from suffixsvc_bench.decode.tables import (
    against_grid,
    decode_grid,
    forecast_grid,
    left_out,
    priced_grid,
)
from suffixsvc_bench.index_bench.charts import index_charts
from suffixsvc_bench.index_bench.tables import index_grids, removal_line, restart_grid
from suffixsvc_bench.page.commands import (
    build_command,
    decode_command,
    index_command,
    replay_command,
    rpc_command,
    segment_command,
)
from suffixsvc_bench.provenance import Provenance
from suffixsvc_bench.replay.charts import charts
from suffixsvc_bench.replay.document import read_comparison
from suffixsvc_bench.replay.grids import describe, headline_grids, summary_grids
from suffixsvc_bench.rpc_bench.report import rpc_grid, rpc_line
from suffixsvc_bench.segment_bench import segment_grid
from suffixsvc_bench.tables import markdown_grid

__all__ = ["publish"]

_WORDS: Final = Path(__file__).parent
#: further runs of decoding: the file's name, and the heading
_DECODED_TOO: Final = {
    "decode-layers": "### Layers by themselves",
    "decode-k": "### Speed against K",
    "decode-temperature": "### Speed against temperature",
    "decode-draft": "### With a draft model",
}
#: a paragraph of the page, or a chart in it
Part = str | Chart


def publish(measured: Path, page: Path, *, keep: bool = False) -> list[Path]:
    """Write the page and its plots; returns what was written.

    Args:
        measured: a folder with what the verbs printed with ``--json``: replay.json, index.json,
            segment.json, rpc.json, build.json, decode.json; and of further runs of that verb, which go below
            it, decode-layers.json (layers by themselves), decode-k.json (a sweep over K),
            decode-temperature.json and decode-draft.json (with a draft model).
        page: the page; plots go into a folder of its name beside it, and old ones there are removed. So does
            the latter as they are, with every pair.
        keep: sections without a file stay as the page has them; otherwise they are left out. Sections that
            are none of these are left out in any case.

    Raises:
        InvalidInputError: there is none of these files, one cannot be read, or the page cannot be written.
    """
    parts: list[Part] = [_words("introduction")]
    found = 0
    try:
        kept = _sections_of(page) if keep else {}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"cannot read the page {page}", got=str(error)) from None
    for name, (heading, section) in _SECTIONS.items():
        path = measured / f"{name}.json"
        if path.is_file():
            found += 1
            parts += [heading, *section(path)]
        elif heading in kept:
            parts.append(kept[heading])
    if not found:
        raise InvalidInputError(
            f"{measured} holds no results", expected=", ".join(f"{name}.json" for name in _SECTIONS)
        )
    try:
        return [*_write(page, parts), *_pairs(measured, page)]
    except OSError as error:
        raise InvalidInputError(f"cannot write the page {page}", got=str(error)) from None


def _sections_of(page: Path) -> dict[str, str]:
    """By heading, the sections of a page as they stand."""
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    found = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    return {section.splitlines()[0]: section.strip() for section in found if section.startswith("## ")}


def _pairs(measured: Path, page: Path) -> list[Path]:
    """What was measured on a real model, pair by pair, beside the page."""
    written = []
    for name in ("decode", *_DECODED_TOO):
        path = measured / f"{name}.json"
        if path.is_file():
            data = json.loads(path.read_text(encoding="utf-8"))
            written.append(page.with_suffix("") / path.name)
            written[-1].write_text(json.dumps(data) + "\n", encoding="utf-8")
    return written


def _write(page: Path, parts: Sequence[Part]) -> list[Path]:
    if page.is_dir() or not page.suffix:
        raise InvalidInputError(f"cannot write the page {page}", expected="a file with an ending, as .md")
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
    head = [_words("drafting"), _made(found.provenance, replay_command(found.request))]
    tables = [markdown_grid(grid) for grid in headline_grids(results, plan)]
    every = [markdown_grid(grid) for grid in summary_grids(results, plan)]
    traces = "\n".join(f"* {describe(result)}" for result in results)
    return [
        *head,
        *tables,
        *charts(results, plan),
        "### Every method",
        *every,
        f"The traces:\n\n{traces}",
    ]


def _index(path: Path) -> list[Part]:
    results = _read(path, ("provenance", "options", "texts", "restart"))
    parts: list[Part] = [_words("index"), _made(_where(results), index_command(results))]
    for name, grid in index_grids(results):
        parts += [markdown_grid(grid), removal_line(results["texts"][name])]
    if results["restart"] is not None:
        parts += ["### Restart", _words("restart"), markdown_grid(restart_grid(results["restart"]))]
    return [*parts, *index_charts(results)]


def _segment(path: Path) -> list[Part]:
    results = _read(path, ("provenance", "seed", "sizes"))
    made = _made(_where(results), segment_command(results))
    return [_words("segment"), made, markdown_grid(segment_grid(results))]


def _rpc(path: Path) -> list[Part]:
    report = _read(path, ("provenance", "options", "timings"))
    made = _made(_where(report), rpc_command(report))
    return [_words("rpc"), made, markdown_grid(rpc_grid(report)), rpc_line(report)]


def _build(path: Path) -> list[Part]:
    results = _read(path, ("provenance", "options"))
    made = _made(_where(results), build_command(results))
    return [_words("build"), made, *map(markdown_grid, build_grids(results))]


def _decode(path: Path) -> list[Part]:
    results = _read_decode(path)
    parts: list[Part] = [_words("decode"), *_run(results, path.name)]
    parts += decode_charts(results)
    for name, heading in _DECODED_TOO.items():
        beside = path.with_name(f"{name}.json")
        if beside.is_file():
            more = _read_decode(beside)
            parts += [heading, _words(name), *_run(more, beside.name), *k_charts(more)]
    return parts


def _read_decode(path: Path) -> dict[str, Any]:
    return _read(path, ("provenance", "options", "rows", "forecasts"))


def _run(results: Mapping[str, Any], beside: str) -> list[Part]:
    """One run of decoding, whose pairs stand in the file ``beside``."""
    parts: list[Part] = [
        _made(_where(results), decode_command(results)),
        _decoded(results, beside),
        markdown_grid(decode_grid(results)),
        *(f"{sentence}." for sentence in left_out(results)),
        "Beside what the replay of the same calls forecasts:",
        markdown_grid(forecast_grid(results)),
    ]
    others = against_grid(results)
    if others is not None:
        first = results["rows"][0]["variant"]
        parts += [f"Tokens per second of {first} over those of the other ways, same calls:"]
        parts.append(markdown_grid(others))
    for name, rows in results["priced"].items():
        parts += [
            f"#### {priced_heading(name, results['prices'][name])}",
            f"{results['prices'][name]}.",
            markdown_grid(priced_grid(rows)),
        ]
    return parts


def _decoded(results: Mapping[str, Any], beside: str) -> str:
    costs = results["curve"]["costs"]
    widths = ", ".join(f"{w}: {costs[w]:.1f}" for w in (2, 4, 8, 16, 32) if w < len(costs))
    draft = f", drafts by {results['draft']}" if results["draft"] else ""
    return (
        f"{results['target']}{draft}, {results['threads']} threads. A step of so many tokens costs, in plain "
        f"ones: {widths}. Every pair stands in {beside}, beside the plots."
    )


#: by the file's name: the heading, and what stands below it
_SECTIONS: Final[dict[str, tuple[str, Callable[[Path], list[Part]]]]] = {
    "replay": ("## Drafting", _replay),
    "index": ("## The index", _index),
    "segment": ("## Sealed segments", _segment),
    "rpc": ("## Over the wire", _rpc),
    "build": ("## Building caches", _build),
    "decode": ("## Decoding on a real model", _decode),
}


def _words(section: str) -> str:
    return (_WORDS / f"{section}.md").read_text(encoding="utf-8").strip()


def _made(where: Provenance, command: str) -> str:
    busy = (
        " The machine was busy with other work: times are too high." if where.load > where.cores / 2 else ""
    )
    return f"Made by {where.line()}.{busy} To repeat it:\n\n    {command}"


def _where(results: Mapping[str, Any]) -> Provenance:
    return Provenance(**results["provenance"])


def _read(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        missing = [key for key in keys if key not in data]
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise InvalidInputError(f"cannot read {path}", got=str(error)[:200]) from None
    if missing:
        raise InvalidInputError(
            f"{path} is of another benchmark or version", expected=", ".join(keys), got=f"no {missing[0]}"
        )
    return data  # type: ignore[no-any-return] # looked up by key above

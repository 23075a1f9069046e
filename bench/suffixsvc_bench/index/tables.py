"""Tables of the index benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from suffixsvc_bench.report.tables import Grid


def index_parts(results: Mapping[str, Any]) -> list[Grid | str]:
    """All tables and sentences."""
    parts: list[Grid | str] = []
    for name, grid in index_grids(results):
        text = results["texts"][name]
        parts += [grid, removal_line(text), holds_grid(text)]
    return parts + [restart_grid(found) for found in [results["restart"]] if found is not None]


def index_grids(results: Mapping[str, Any]) -> list[tuple[str, Grid]]:
    """(kind of text, its table) of every kind: one column per size, ours and the peer's in one cell."""
    beside = "ours / Arctic" if results["peer"] else "ours"
    grids = []
    for name, text in results["texts"].items():
        grid = Grid([f"{name} ({beside})", *(_size(at) for at in text["sizes"])])
        grid.rows += [[label, *(cell(at) for at in text["sizes"])] for label, cell in _ROWS]
        grids.append((name, grid))
    return grids


def removal_line(text: Mapping[str, Any]) -> str:
    """One sentence on the memory that remains while the outputs of one kind are removed."""
    all_, half, end = text["removal"][0], text["removal"][5], text["removal"][-1]
    return (
        f"Removing {all_['tokens']} tokens, the oldest first: after half of them "
        f"{half['bytes'] / all_['bytes']:.0%} of the bytes remain, "
        f"after all {end['of_empty']:.2f} x an empty index."
    )


def holds_grid(text: Mapping[str, Any]) -> Grid:
    """Longest hold times of the locks that steps wait for, by operation."""
    grid = Grid(["longest holds", "lock", "CPU ms", "work"])
    grid.rows += [[at["job"], at["lock"], f"{at['ms']:.2f}", f"{at['work']}"] for at in text["holds"]]
    return grid


def restart_grid(restart: Mapping[str, Any]) -> Grid:
    """Data folders: one column per size."""
    grid = Grid([f"a folder, {restart['kind']}", *(_size(at) for at in restart["sizes"])])
    grid.rows += [[label, *(cell(at) for at in restart["sizes"])] for label, cell in _RESTART_ROWS]
    return grid


def _size(at: Mapping[str, Any]) -> str:
    return f"{at['tokens'] / 1e6:g}M tokens"


def _pair(key: str, form: str) -> Callable[[Mapping[str, Any]], str]:
    """A cell with our value and the peer's."""

    def cell(at: Mapping[str, Any]) -> str:
        return " / ".join(form.format(at[each]) for each in (key, f"peer_{key}") if each in at)

    return cell


def _step(sort: str, what: str) -> Callable[[Mapping[str, Any]], str]:
    """A cell with the p50 (p99) of a part of our step and of the peer's."""

    def cell(at: Mapping[str, Any]) -> str:
        taken = at["steps"][sort]
        both = [taken[each] for each in (what, f"peer {what}") if each in taken]
        return " / ".join(f"{each['p50']:.1f} ({each['p99']:.0f})" for each in both)

    return cell


_ROWS: list[tuple[str, Any]] = [
    ("ingest, us per token", _pair("ingest_us_per_token", "{:.2f}")),
    ("bytes per token (resident)", _pair("resident_bytes_per_token", "{:.0f}")),
    ("bytes per token (counted)", lambda at: f"{at['bytes_per_token']:.1f}"),
    ("new text: append, us p50 (p99)", _step("new text", "append_us")),
    ("new text: draft", _step("new text", "draft_us")),
    ("new text: step, through Python", _step("new text", "step_us")),
    ("known text: append", _step("known text", "append_us")),
    ("known text: draft", _step("known text", "draft_us")),
    ("known text: step, through Python", _step("known text", "step_us")),
    ("remove an output, ms", _pair("remove_ms_per_output", "{:.2f}")),
    ("open a session, ms", _pair("open_ms", "{:.1f}")),
]


def _beside_smallest(at: Mapping[str, Any], which: str) -> str:
    value, ratio = at[f"append_draft_us_{which}"], at["append_draft_of_smallest"][which]
    return f"{value:.1f}" + (f" ({ratio:.2f} x smallest)" if ratio != 1 else "")


_RESTART_ROWS: list[tuple[str, Any]] = [
    ("add until durable, us per token", lambda at: f"{at['add_us_per_token']:.2f}"),
    ("compact, us per token", lambda at: f"{at['compact_us_per_token']:.2f}"),
    ("segments", lambda at: f"{at['segments']}"),
    ("segments on disk, bytes per token", lambda at: f"{at['segment_bytes_per_token']:.1f}"),
    ("folder on disk, bytes per token", lambda at: f"{at['folder_bytes_per_token']:.0f}"),
    ("peak resident while filling, MB", lambda at: f"{at['peak_resident_bytes'] / 1e6:.0f}"),
    ("open, s", lambda at: f"{at['open_s']:.3f}"),
    ("open to first draft, s", lambda at: f"{at['first_draft_s']:.3f}"),
    ("resident after open, MB", lambda at: f"{at['resident_bytes'] / 1e6:.0f}"),
    ("of it anonymous, MB", lambda at: f"{at['resident_anonymous_bytes'] / 1e6:.0f}"),
    ("step in new text, us p50", lambda at: _beside_smallest(at, "new")),
    ("step in known text, us p50", lambda at: _beside_smallest(at, "known")),
]

"""Tables of the benchmark of building caches: the performance targets first, then each section."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from suffixsvc_bench.build.options import BUDGETS
from suffixsvc_bench.report.tables import Grid
from suffixsvc_caches.sizes import format_size

_TOKENS_PER_CORE = 2e6
_OF_MEMORY = 1.1
_EXPORT_SECONDS = 20.0
_EXPORT_RECORDS = 10e6
_LLAMA = 2.0
_BUDGET = 0.2
_OF_WHOLE = 0.98


def build_grids(results: Mapping[str, Any]) -> list[Grid]:
    """One table of performance targets, then one for each section that was measured."""
    goals = Grid(["figure", "measured", "target", "met"])
    goals.rows += [[what, measured, target, _yes(met)] for what, measured, target, met in _goals(results)]
    grids = [goals] if goals.rows else []
    sections: dict[str, Callable[[Any], Grid]] = {
        "tokens": _tokens_grid,
        "text": _text_grid,
        "memory": _memory_grid,
        "export": _export_grid,
        "llama": _llama_grid,
        "cluster": _cluster_grid,
    }
    grids += [grid(results[name]) for name, grid in sections.items() if results.get(name)]
    return grids + [_pruning_grid(log) for log in results.get("pruning") or ()]


def _goals(results: Mapping[str, Any]) -> Iterator[tuple[str, str, str, bool]]:
    if tokens := results.get("tokens"):
        for each in tokens["builds"]:
            rate = each["tokens"] / each["cpu_s"]
            what = f"token ids counted, {each['orders']}, {_workers(each)}"
            yield what, f"{_millions(rate)}M/s a core", ">= 2M/s", rate >= _TOKENS_PER_CORE
    for each in results.get("memory") or ():
        what = f"peak memory, {each['tokens'] / 1e6:g}M tokens, of {format_size(each['memory_bytes'])}"
        yield what, f"{each['of_memory']:.2f} x", "<= 1.1 x", each["of_memory"] <= _OF_MEMORY
    if export := results.get("export"):
        for what, each in (("counted", export["counted"]), ("of a data folder", export["stored"])):
            seconds = each["wall_s"] / each["records"] * _EXPORT_RECORDS
            yield f"export of 10M n-grams, {what}", f"{seconds:.1f} s", "< 20 s", seconds < _EXPORT_SECONDS
    if llama := results.get("llama"):
        ratio = llama["text"]["ratio_wall_s"]
        yield f"beside llama-lookup-create, {llama['target']}", f"{ratio:.2f} x", ">= 2 x", ratio >= _LLAMA
    for log in results.get("pruning") or ():
        for kind in ("static", "dynamic"):
            share = log[kind]["cut"][BUDGETS.index(_BUDGET)]["of_whole"]
            if share is not None:
                what = f"accepted with 20 % of the bytes, {kind}, {log['log']}"
                yield what, f"{share:.1%} of the whole cache's", ">= 98 %", share >= _OF_WHOLE
    if cluster := results.get("cluster"):
        same = cluster["identical"]
        yield "Ray output equals that of one machine", _yes(same), "yes", same


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _workers(each: Mapping[str, Any]) -> str:
    return f"{each['workers']} worker{'s' if each['workers'] > 1 else ''}"


def _millions(rate: float) -> str:
    return f"{rate / 1e6:.2f}"


def _tokens_grid(found: Mapping[str, Any]) -> Grid:
    grid = Grid(["from token ids", "M/s per core", "M/s", "start-up, s", "files"])
    for each in found["native"]:
        grid.rows.append([f"counting and merging alone, {each['orders']}", *_rates(each), "", ""])
    for each in found["builds"]:
        starting = f"{each['process_wall_s'] - each['wall_s']:.2f}"
        title = f"build from Parquet, {each['orders']}, {_workers(each)}"
        grid.rows.append([title, *_rates(each), starting, format_size(each["bytes"])])
    return grid


def _rates(each: Mapping[str, Any]) -> list[str]:
    return [_millions(each["tokens"] / each[name]) for name in ("cpu_s", "wall_s")]


def _text_grid(found: list[Mapping[str, Any]]) -> Grid:
    grid = Grid(["from text", "M/s per core", "M/s", "tokenising alone, M/s per core", "share"])
    for each in found:
        alone = _millions(each["tokens"] / each["tokenise_cpu_s"])
        share = f"{each['tokenise_cpu_s'] / each['cpu_s']:.0%}"
        grid.rows.append([f"{each['tokenizer']}, {_workers(each)}", *_rates(each), alone, share])
    return grid


def _memory_grid(found: list[Mapping[str, Any]]) -> Grid:
    grid = Grid(["memory limit", "peak", "of limit", "tokens", "M/s", "runs", "files"])
    for each in found:
        grid.rows.append(
            [
                format_size(each["memory_bytes"]),
                format_size(each["peak_bytes"]),
                f"{each['of_memory']:.2f} x",
                f"{each['tokens'] / 1e6:g}M",
                _millions(each["tokens"] / each["wall_s"]),
                str(each["runs"]),
                format_size(each["bytes"]),
            ]
        )
    return grid


def _export_grid(found: Mapping[str, Any]) -> Grid:
    grid = Grid(["export", "n-grams", "s", "M n-grams/s", "files"])
    for title, name in (("from counts", "counted"), ("from a data folder", "stored")):
        each = found[name]
        rate = _millions(each["records"] / each["wall_s"])
        cells = [f"{each['records']:,}", f"{each['wall_s']:.1f}", rate, format_size(each["bytes"])]
        grid.rows.append([title, *cells])
    grid.summaries.append(["identical bytes", _yes(found["identical"]), "", "", ""])
    return grid


def _pruning_grid(log: Mapping[str, Any]) -> Grid:
    name = log["log"].partition(".")[0]
    grid = Grid([f"{name}, held out", "bytes", "accepted", "of unpruned", "of drafted", "of text"])

    def row(title: str, each: Mapping[str, Any], of_whole: float | None) -> None:
        shares = [_percent(value) for value in (of_whole, each["accept"], each["hit_rate"])]
        grid.rows.append([title, format_size(each["bytes"]), f"{each['n_accept']:,}", *shares])

    row("no cache", log["none"], None)
    for kind in ("static", "dynamic"):
        row(f"{kind} cache", log[kind]["whole"], 1.0)
        for cut in log[kind]["cut"]:
            row(f"... in {cut['budget']:.0%} of the bytes", cut, cut["of_whole"])
    return grid


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _llama_grid(found: Mapping[str, Any]) -> Grid:
    grid = Grid(["whole processes", "llama-lookup-create, s", "build, s", "ratio", "CPU ratio"])
    for title, name in ((f"{found['tokens']:,} tokens of text", "text"), ("a short text", "start")):
        each = found[name]
        seconds = [f"{each[f'{program}_wall_s']:.2f}" for program in ("theirs", "ours")]
        ratios = [f"{each[f'ratio_{kind}']:.2f}" for kind in ("wall_s", "cpu_s")]
        grid.rows.append([title, *seconds, *ratios])
    grid.summaries.append(
        [f"identical {found['ngrams']:,} 2-grams and counts", _yes(found["identical"]), "", "", ""]
    )
    return grid


def _cluster_grid(found: Mapping[str, Any]) -> Grid:
    grid = Grid(["engine", "M/s, with start-up", "files"])
    for engine in ("local", "ray"):
        each = found[engine]
        rate = _millions(each["tokens"] / each["process_wall_s"])
        grid.rows.append([engine, rate, format_size(each["bytes"])])
    grid.summaries.append(["identical bytes", _yes(found["identical"]), ""])
    return grid

"""Runner of the benchmark of building caches: its sections, in order."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.build.llama import compare_with_llama
from suffixsvc_bench.build.options import BuildBenchOptions
from suffixsvc_bench.build.pruning import measure_pruning
from suffixsvc_bench.build.texts import source_text, write_texts
from suffixsvc_bench.measured_process import run_part
from suffixsvc_bench.report.output import Report
from suffixsvc_bench.report.provenance import provenance

Notify = Callable[[str], None]

_part: Final = partial(run_part, "suffixsvc_bench.build.part")
_MEMORY: Final = 1 << 30
_LOGS: Final = 4  # input logs of the cluster section


def run_build_bench(options: BuildBenchOptions, progress: Report = lambda *_: None) -> dict[str, Any]:
    """Measure the selected sections.

    Returns:
        JSON-able data: {"provenance", "options", section: ...}; a section is None if it was not selected or
        lacks an input.

    Raises:
        StoreError: a part failed.
        InvalidInputError: a log or a text cannot be used.
    """
    plain = json.dumps(asdict(options) | {"folder": None}, default=lambda file: file.name)
    results: dict[str, Any] = {"provenance": provenance().as_dict(), "options": json.loads(plain)}
    for number, (name, measure) in enumerate(_SECTIONS.items()):

        def notify(what: str, number: int = number) -> None:
            progress(what, number / len(_SECTIONS))

        results[name] = None
        if name in options.sections:
            with tempfile.TemporaryDirectory(prefix="sfx-bench-", dir=options.folder) as scratch:
                results[name] = measure(options, Path(scratch), notify)
    return results


def _tokens(options: BuildBenchOptions, folder: Path, notify: Notify) -> dict[str, Any]:
    log = folder / "ids.parquet"
    notify("generating token ids")
    _part("make", path=log, tokens=options.tokens, seed=options.seed)
    native, builds = [], []
    for title, orders, dynamic in (("n = 1 to 4", (1, 4), True), ("n = 2", (2, 2), False)):
        notify(f"counting {options.tokens / 1e6:g}M token ids, {title}")
        lowest, highest = orders
        native.append(
            {"orders": title}
            | _part(
                "count", path=log, lowest=lowest, highest=highest, memory=_MEMORY // 2, folder=_new(folder)
            )
        )
        for workers in (1, 2):
            notify(f"building from {options.tokens / 1e6:g}M token ids, {title}, workers: {workers}")
            built = _build(folder, [log], workers, dynamic=dynamic)
            builds.append({"orders": title, "workers": workers} | built)
    return {"native": native, "builds": builds}


def _text(options: BuildBenchOptions, folder: Path, notify: Notify) -> list[dict[str, Any]] | None:
    if not options.tokenizers:
        return None
    log = folder / "texts.jsonl"
    text = source_text(options.text_bytes, options.text)
    write_texts(log, text)
    found = []
    for tokenizer in options.tokenizers:
        notify(f"tokenising with {tokenizer.name}")
        alone = _part("tokenise", log=log, tokenizer=tokenizer, threads=1)
        for workers in (1, 2):
            notify(f"building from text with {tokenizer.name}, workers: {workers}")
            built = _build(folder, [log], workers, tokenizer=tokenizer)
            its = {"tokenizer": tokenizer.name, "workers": workers, "chars": len(text)}
            found.append(its | built | {f"tokenise_{name}": alone[name] for name in ("wall_s", "cpu_s")})
    return found


def _memory(options: BuildBenchOptions, folder: Path, notify: Notify) -> list[dict[str, Any]]:
    log = folder / "ids.parquet"
    notify(f"generating {options.memory_tokens / 1e6:g}M token ids")
    _part("make", path=log, tokens=options.memory_tokens, seed=options.seed)
    found = []
    for memory in options.memories:
        notify(f"building from {options.memory_tokens / 1e6:g}M token ids in {memory >> 20} MiB")
        built = _build(folder, [log], 2, memory=memory)
        found.append({"memory_bytes": memory, "of_memory": built["peak_bytes"] / memory} | built)
    return found


def _export(options: BuildBenchOptions, folder: Path, notify: Notify) -> dict[str, Any]:
    log, data = folder / "ids.parquet", folder / "data"
    # a token of these texts adds 0.6 to 0.7 n-grams
    notify(f"exporting about {options.records / 1e6:g}M n-grams")
    _part("make", path=log, tokens=options.records * 3 // 2, seed=options.seed)
    counted = _part("export", path=log, folder=_new(folder), memory=_MEMORY)
    notify("filling a data folder")
    _part("fill", path=log, data=data)
    notify("exporting the data folder")
    stored = _part("export_folder", data=data, folder=_new(folder))
    return {"counted": counted, "stored": stored, "identical": counted["xxh3"] == stored["xxh3"]}


def _cluster(options: BuildBenchOptions, folder: Path, notify: Notify) -> dict[str, Any] | None:
    if importlib.util.find_spec("ray") is None:
        return None
    each = max(1000, options.tokens // _LOGS)
    logs = [folder / f"{i}.parquet" for i in range(_LOGS)]
    for i, log in enumerate(logs):
        _part("make", path=log, tokens=each, seed=options.seed + i)
    found = {}
    for engine in ("local", "ray"):
        notify(f"building from {_LOGS} logs, engine {engine}")
        found[engine] = _build(folder, logs, 2, engine=engine)
    return found | {"identical": found["local"]["xxh3"] == found["ray"]["xxh3"]}


def _pruning(options: BuildBenchOptions, folder: Path, notify: Notify) -> list[dict[str, Any]] | None:
    if not options.logs:
        return None
    tokenizer = options.tokenizers[0] if options.tokenizers else None
    return [measure_pruning(log, tokenizer, _new(folder), notify) for log in options.logs]


def _llama(options: BuildBenchOptions, folder: Path, notify: Notify) -> dict[str, Any] | None:
    if options.program is None or options.target is None:
        return None
    text = source_text(options.text_bytes, options.text)
    if not text.strip():
        raise InvalidInputError("text must not be empty")
    return compare_with_llama(options.program, options.target, text, options.rounds, folder, notify)


def _build(folder: Path, logs: list[Path], workers: int, **others: Any) -> dict[str, Any]:
    options = {"memory": _MEMORY} | others
    return _part("build", logs=list(map(str, logs)), folder=_new(folder), workers=workers, **options)


def _new(folder: Path) -> Path:
    """Create an empty folder below ``folder``."""
    return Path(tempfile.mkdtemp(dir=folder))


_SECTIONS: Final[dict[str, Callable[[BuildBenchOptions, Path, Notify], Any]]] = {
    "tokens": _tokens,
    "text": _text,
    "memory": _memory,
    "export": _export,
    "pruning": _pruning,
    "llama": _llama,
    "cluster": _cluster,
}

"""Measurements of the benchmark of building caches, each run as a separate process.

    python -m suffixsvc_bench.build.part NAME '{"option": value}'

See :func:`suffixsvc_bench.measured_process.run_part`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

__all__: list[str] = []


def make(path: str, tokens: int, seed: int) -> dict[str, Any]:
    """Write a log of synthetic token ids."""
    from suffixsvc_bench.build.texts import synthetic_outputs, write_ids  # noqa: PLC0415

    return {"tokens": write_ids(Path(path), synthetic_outputs(tokens, seed))}


def count(path: str, lowest: int, highest: int, memory: int, folder: str) -> dict[str, Any]:
    """Count token ids that are in memory already, and merge the runs: the native part alone, one thread."""
    import numpy as np  # noqa: PLC0415 - parts that do not count start without it
    import pyarrow.parquet as pq  # noqa: PLC0415 - as above

    from suffixsvc.core.ngram_count import NgramCounter, TallyOutput, tally_runs  # noqa: PLC0415 - as above

    column = pq.read_table(path).column(0).combine_chunks()
    tokens, ends = column.values.to_numpy(), column.offsets.to_numpy()[1:].astype(np.int64)
    contexts = np.zeros(len(ends), np.int64)
    largest = int(tokens.max())
    runs: list[Path] = []
    stopwatch = _Stopwatch()
    counter = NgramCounter(lowest, highest, largest_token=largest, memory_bytes=memory)
    at, step = 0, 512
    for i in range(0, len(ends), step):
        its = ends[i : i + step]
        if its[-1] - at > counter.room:
            runs.append(Path(folder) / f"{len(runs)}.run")
            counter.spill(runs[-1])
        counter.add(tokens[at : its[-1]], its - at, contexts[i : i + step])
        at = int(its[-1])
    runs.append(Path(folder) / f"{len(runs)}.run")
    counter.spill(runs[-1])
    outputs = [TallyOutput(f"{folder}/{n}.records", n) for n in range(lowest, highest + 1)]
    tally_runs(runs, outputs)
    return {"tokens": len(tokens), "runs": len(runs), **stopwatch.seconds()}


def build(
    logs: list[str],
    folder: str,
    workers: int,
    memory: int = 1 << 30,
    dynamic: bool = True,
    tokenizer: str | None = None,
    engine: str = "local",
) -> dict[str, Any]:
    """Run ``suffixsvc build``: static.bin, and with ``dynamic`` also dynamic.bin."""
    from suffixsvc_caches.building.run import build as run  # noqa: PLC0415 - part of what is measured
    from suffixsvc_caches.building.spec import BuildSpec  # noqa: PLC0415 - as above
    from suffixsvc_caches.counting.memory import peak_bytes  # noqa: PLC0415 - as above
    from suffixsvc_caches.tokenizers.load import TokenizerSource  # noqa: PLC0415 - as above

    stopwatch = _Stopwatch()
    both = _caches(folder)
    result = run(
        BuildSpec(
            logs=[Path(log) for log in logs],
            tokenizer=TokenizerSource(Path(tokenizer)) if tokenizer else None,
            static=both[0],
            dynamic=both[1] if dynamic else None,
            workers=workers,
            memory_bytes=memory,
            force=True,
            engine=engine,
        )
    )
    seconds = stopwatch.seconds()
    counted = result.counted
    sizes = {"tokens": counted.tokens, "runs": len(counted.runs), "peak_bytes": peak_bytes()}
    return {**sizes, **_records(result.caches), **seconds}


def tokenise(log: str, tokenizer: str, threads: int) -> dict[str, Any]:
    """Encode the responses of a log, without counting."""
    from suffixsvc_caches.tokenizers.load import load_tokenizer  # noqa: PLC0415 - not for other parts
    from suffixsvc_caches.tokenizers.pieces import encode_texts  # noqa: PLC0415 - as above

    codec = load_tokenizer(Path(tokenizer), threads=threads)
    with Path(log).open(encoding="utf-8") as file:
        texts = [json.loads(line)["response"] for line in file]
    stopwatch = _Stopwatch()
    tokens = 0
    for i in range(0, len(texts), 32):  # the batch size of a build
        tokens += sum(map(len, encode_texts(codec, texts[i : i + 32])))
    return {"tokens": tokens, **stopwatch.seconds()}


def export(path: str, folder: str, memory: int) -> dict[str, Any]:
    """Merge counts into the two files of a build, with all followers and counts."""
    from suffixsvc_caches.building.lookup_caches import LookupCaches  # noqa: PLC0415 - not measured
    from suffixsvc_caches.counting.journal import Journal  # noqa: PLC0415 - as above
    from suffixsvc_caches.counting.local import count_logs  # noqa: PLC0415 - as above
    from suffixsvc_caches.counting.merging import merge_runs  # noqa: PLC0415 - as above
    from suffixsvc_caches.counting.plan import CountOptions, CountPlan  # noqa: PLC0415 - as above
    from suffixsvc_caches.logs import ReadOptions, find_logs  # noqa: PLC0415 - as above
    from suffixsvc_caches.manifest import TokenizerNote  # noqa: PLC0415 - as above

    reading = ReadOptions()
    options = CountOptions(memory_bytes=memory)
    plan = CountPlan(find_logs([Path(path)], reading), reading, None, options)
    journal = Journal(Path(folder) / "work", plan.key())
    counted = count_logs(plan, journal)
    caches = LookupCaches(*_caches(folder))
    stopwatch = _Stopwatch()
    found = merge_runs(journal, caches.wanted, 1)
    files = caches.write(found, force=True, tokenizer=TokenizerNote(counted.fingerprint), options={})
    seconds = stopwatch.seconds()
    journal.close()
    return {"tokens": counted.tokens, **_records(files), **seconds}


def fill(path: str, data: str) -> dict[str, Any]:
    """Load a log into a data folder."""
    from suffixsvc_caches.building.run import build as run  # noqa: PLC0415 - not for other parts
    from suffixsvc_caches.building.spec import BuildSpec, CorpusTarget  # noqa: PLC0415 - as above

    result = run(BuildSpec(logs=[Path(path)], corpus=CorpusTarget("bench", Path(data))))
    return {"tokens": result.counted.tokens}


def export_folder(data: str, folder: str) -> dict[str, Any]:
    """Run ``suffixsvc export --data``."""
    from suffixsvc_caches.exporting import export_lookup  # noqa: PLC0415 - not measured

    stopwatch = _Stopwatch()
    done = export_lookup("bench", Path(data), *_caches(folder), force=True)
    return {"tokens": done.tokens, **_records(done.files), **stopwatch.seconds()}


def _caches(folder: str) -> list[Any]:
    """Specifications of the static and the dynamic cache."""
    from suffixsvc_caches.building.lookup_caches import LookupSpec  # noqa: PLC0415 - only parts that build load it

    return [LookupSpec(Path(folder) / f"{kind}.bin") for kind in ("static", "dynamic")]


def _records(files: Any) -> dict[str, Any]:
    written = [each.manifest for each in (files.static, files.dynamic) if each is not None]
    return {
        "records": sum(sum(each.ngrams.values()) for each in written),
        "bytes": sum(each.bytes for each in written),
        "xxh3": [each.xxh3 for each in written],
    }


class _Stopwatch:
    """Wall-clock and CPU seconds of this process since construction."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def seconds(self) -> dict[str, float]:
        return {"wall_s": time.perf_counter() - self._wall, "cpu_s": time.process_time() - self._cpu}


if __name__ == "__main__":
    _, part, options = sys.argv
    parts = {each.__name__: each for each in (make, count, build, tokenise, export, fill, export_folder)}
    print(json.dumps(parts[part](**json.loads(options))))

"""One measurement of the benchmark of building caches, run as a separate process.

A process of its own makes memory use and start-up time attributable to the part that is measured.

    python -m suffixsvc_bench.build.part NAME '{"option": value}'

The last line of standard output is the result as a JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

__all__ = ["main"]


def make(path: str, tokens: int, seed: int, first: int = 0) -> dict[str, Any]:
    """Write a log of synthetic token ids; ``first`` skips that many tokens of the stream."""
    from suffixsvc_bench.build.texts import OUTPUT_TOKENS, synthetic_outputs, write_ids  # noqa: PLC0415

    responses = synthetic_outputs(first + tokens, seed)
    for _ in range(first // OUTPUT_TOKENS):
        next(responses)
    return {"tokens": write_ids(Path(path), responses)}


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
    from suffixsvc_caches.building import BuildSpec, LookupSpec  # noqa: PLC0415 - part of what is measured
    from suffixsvc_caches.building import build as run  # noqa: PLC0415 - as above
    from suffixsvc_caches.counting.memory import peak_bytes  # noqa: PLC0415 - as above
    from suffixsvc_caches.tokenizers import TokenizerSource  # noqa: PLC0415 - as above

    where = Path(folder)
    stopwatch = _Stopwatch()
    result = run(
        BuildSpec(
            logs=[Path(log) for log in logs],
            tokenizer=TokenizerSource(Path(tokenizer)) if tokenizer else None,
            static=LookupSpec(where / "static.bin"),
            dynamic=LookupSpec(where / "dynamic.bin") if dynamic else None,
            workers=workers,
            memory_bytes=memory,
            force=True,
            engine=engine,
        )
    )
    seconds = stopwatch.seconds()
    written = [each for each in (result.static, result.dynamic) if each is not None]
    return {
        "tokens": result.counted.tokens,
        "runs": len(result.counted.runs),
        "peak_bytes": peak_bytes(),
        "bytes": sum(each.size_bytes for each in written),
        "records": sum(sum(each.ngrams.values()) for each in written),
        "xxh3": [each.xxh3 for each in written],
        **seconds,
    }


def tokenise(log: str, tokenizer: str, threads: int) -> dict[str, Any]:
    """Encode the responses of a log, without counting."""
    from suffixsvc_caches.tokenizers import encode_texts, load_tokenizer  # noqa: PLC0415 - not for other parts

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
    from suffixsvc_caches.building import LookupCaches, LookupSpec, Provenance  # noqa: PLC0415 - not measured
    from suffixsvc_caches.counting import (  # noqa: PLC0415 - as above
        CountOptions,
        CountPlan,
        Journal,
        count_logs,
        merge_runs,
    )
    from suffixsvc_caches.logs import ReadOptions, find_logs  # noqa: PLC0415 - as above
    from suffixsvc_caches.manifest import TokenizerNote  # noqa: PLC0415 - as above

    where = Path(folder)
    reading = ReadOptions()
    plan = CountPlan(find_logs([Path(path)], reading), reading, None, CountOptions(memory_bytes=memory))
    journal = Journal(where / "work", plan.key())
    counted = count_logs(plan, journal)
    caches = LookupCaches(LookupSpec(where / "static.bin"), LookupSpec(where / "dynamic.bin"))
    stopwatch = _Stopwatch()
    found = merge_runs(journal, caches.wanted, 1)
    files = caches.write(found, Provenance(TokenizerNote(counted.fingerprint)), force=True)
    seconds = stopwatch.seconds()
    journal.close()
    return {"tokens": counted.tokens, **_records(files), **seconds}


def fill(path: str, data: str) -> dict[str, Any]:
    """Load a log into a data folder."""
    from suffixsvc_caches.building import BuildSpec, CorpusTarget  # noqa: PLC0415 - not for other parts
    from suffixsvc_caches.building import build as run  # noqa: PLC0415 - as above

    result = run(BuildSpec(logs=[Path(path)], corpus=CorpusTarget("bench", Path(data))))
    return {"tokens": result.counted.tokens}


def export_folder(data: str, folder: str) -> dict[str, Any]:
    """Run ``suffixsvc export --data``."""
    from suffixsvc_caches.building import LookupSpec  # noqa: PLC0415 - not measured
    from suffixsvc_caches.exporting import ExportSource, export_lookup  # noqa: PLC0415 - as above

    where = Path(folder)
    stopwatch = _Stopwatch()
    done = export_lookup(
        ExportSource("bench", Path(data)),
        LookupSpec(where / "static.bin"),
        LookupSpec(where / "dynamic.bin"),
        force=True,
    )
    return {"tokens": done.tokens, **_records(done.files), **stopwatch.seconds()}


def _records(files: Any) -> dict[str, Any]:
    both = (files.static, files.dynamic)
    return {
        "records": sum(sum(each.ngrams.values()) for each in both),
        "bytes": sum(each.size_bytes for each in both),
        "xxh3": [each.xxh3 for each in both],
    }


class _Stopwatch:
    """Wall-clock and CPU seconds of this process since construction."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def seconds(self) -> dict[str, float]:
        return {"wall_s": time.perf_counter() - self._wall, "cpu_s": time.process_time() - self._cpu}


_PARTS: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    part.__name__: part for part in (make, count, build, tokenise, export, fill, export_folder)
}


def main() -> None:
    """Run the part named by the first argument with the JSON options of the second."""
    what, options = sys.argv[1:]
    print(json.dumps(_PARTS[what](**json.loads(options))), flush=True)


if __name__ == "__main__":
    main()

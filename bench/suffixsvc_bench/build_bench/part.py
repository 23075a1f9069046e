"""One measurement of the benchmark, in a process of its own, so that memory and start-up are its own.

    python -m suffixsvc_bench.build_bench.part NAME '{"option": value}'

Prints what it found as a JSON object in its last line.
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
    """Write a log of token ids; ``first`` leaves so many tokens of the stream out."""
    from suffixsvc_bench.build_bench.texts import OUTPUT_TOKENS, made_up, write_ids  # noqa: PLC0415

    responses = made_up(first + tokens, seed)
    for _ in range(first // OUTPUT_TOKENS):
        next(responses)
    return {"tokens": write_ids(Path(path), responses)}


def count(path: str, lowest: int, highest: int, memory: int, folder: str) -> dict[str, Any]:
    """Count token ids that are in memory already, and merge: the native part alone, one thread."""
    import numpy as np  # noqa: PLC0415 - parts that do not count start without it
    import pyarrow.parquet as pq  # noqa: PLC0415 - as above

    from suffixsvc.core.ngram_count import NgramCounter, TallyOutput, tally_runs  # noqa: PLC0415 - as above

    column = pq.read_table(path).column(0).combine_chunks()
    tokens, ends = column.values.to_numpy(), column.offsets.to_numpy()[1:].astype(np.int64)
    contexts = np.zeros(len(ends), np.int64)
    largest = int(tokens.max())
    runs: list[Path] = []
    watch = _Watch()
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
    return {"tokens": len(tokens), "runs": len(runs), **watch.seconds()}


def build(
    logs: list[str],
    folder: str,
    workers: int,
    memory: int = 1 << 30,
    dynamic: bool = True,
    tokenizer: str | None = None,
    engine: str = "local",
) -> dict[str, Any]:
    """What ``suffixsvc build`` does: static.bin, and dynamic.bin where that is wanted."""
    from suffixsvc_caches.building import BuildSpec, LookupSpec  # noqa: PLC0415 - part of what is measured
    from suffixsvc_caches.building import build as run  # noqa: PLC0415 - as above
    from suffixsvc_caches.counting.memory import peak_bytes  # noqa: PLC0415 - as above
    from suffixsvc_caches.tokenizers import TokenizerSource  # noqa: PLC0415 - as above

    where = Path(folder)
    watch = _Watch()
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
    seconds = watch.seconds()
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
    """Encode the responses of a log, and nothing else."""
    from suffixsvc_caches.tokenizers import encode_texts, load_tokenizer  # noqa: PLC0415 - not for other parts

    codec = load_tokenizer(Path(tokenizer), threads=threads)
    with Path(log).open(encoding="utf-8") as file:
        texts = [json.loads(line)["response"] for line in file]
    watch = _Watch()
    tokens = 0
    for i in range(0, len(texts), 32):  # as many as a build encodes at a time
        tokens += sum(map(len, encode_texts(codec, texts[i : i + 32])))
    return {"tokens": tokens, **watch.seconds()}


def export(path: str, folder: str, memory: int) -> dict[str, Any]:
    """From counts to the two files of a build: merging and writing, with all their followers and counts."""
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
    watch = _Watch()
    found = merge_runs(journal, caches.wanted, 1)
    files = caches.write(found, Provenance(TokenizerNote(counted.fingerprint)), force=True)
    seconds = watch.seconds()
    journal.close()
    return {"tokens": counted.tokens, **_records(files), **seconds}


def fill(path: str, data: str) -> dict[str, Any]:
    """Load a log into a data folder."""
    from suffixsvc_caches.building import BuildSpec, CorpusTarget  # noqa: PLC0415 - not for other parts
    from suffixsvc_caches.building import build as run  # noqa: PLC0415 - as above

    result = run(BuildSpec(logs=[Path(path)], corpus=CorpusTarget("bench", Path(data))))
    return {"tokens": result.counted.tokens}


def export_folder(data: str, folder: str) -> dict[str, Any]:
    """What ``suffixsvc export --data`` does."""
    from suffixsvc_caches.building import LookupSpec  # noqa: PLC0415 - not measured
    from suffixsvc_caches.exporting import ExportSource, export_lookup  # noqa: PLC0415 - as above

    where = Path(folder)
    watch = _Watch()
    done = export_lookup(
        ExportSource("bench", Path(data)),
        LookupSpec(where / "static.bin"),
        LookupSpec(where / "dynamic.bin"),
        force=True,
    )
    return {"tokens": done.tokens, **_records(done.files), **watch.seconds()}


def _records(files: Any) -> dict[str, Any]:
    both = (files.static, files.dynamic)
    return {
        "records": sum(sum(each.ngrams.values()) for each in both),
        "bytes": sum(each.size_bytes for each in both),
        "xxh3": [each.xxh3 for each in both],
    }


class _Watch:
    """Wall and processor seconds from now on, of this process."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def seconds(self) -> dict[str, float]:
        return {"wall_s": time.perf_counter() - self._wall, "cpu_s": time.process_time() - self._cpu}


_PARTS: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    part.__name__: part for part in (make, count, build, tokenise, export, fill, export_folder)
}


def main() -> None:
    what, options = sys.argv[1:]
    print(json.dumps(_PARTS[what](**json.loads(options))), flush=True)


if __name__ == "__main__":
    main()

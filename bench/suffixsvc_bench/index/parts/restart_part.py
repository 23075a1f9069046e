"""Parts of :mod:`suffixsvc_bench.index.parts.restart`, each run as a separate process.

    python -m suffixsvc_bench.index.parts.restart_part NAME '{"option": value}'

See :func:`suffixsvc_bench.measured_process.run_part`.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from suffixsvc import SuffixCache
from suffixsvc.engine import Namespace
from suffixsvc.types import NewOutput, TokenArray
from suffixsvc_bench.index.texts import stream

_NAMESPACE: Final = "bench"
#: outputs per durable batch
_BATCH: Final = 1000
_MAX_DRAFT: Final = 16
_COST: Final = 0.02
_NO_PROMPT: Final = np.zeros(0, np.int32)
#: outputs of each sort that are written token by token
_STEPPED: Final = 6


def fill(folder: str, kind: str, output_tokens: int, tokens: int, seed: int) -> dict[str, Any]:
    """Add outputs, compact, close."""
    outputs = stream(kind, output_tokens, seed)
    known: list[TokenArray] = []
    added = 0
    seconds = 0.0
    where = Path(folder)
    with SuffixCache(where) as cache:
        namespace = cache.namespace(_NAMESPACE)
        while added < tokens:
            count = min(_BATCH, -(-(tokens - added) // output_tokens))
            texts = list(itertools.islice(outputs, count))
            known = known or texts[:_STEPPED]
            batch = [NewOutput(_NAMESPACE, text, (len(text),), _NO_PROMPT) for text in texts]
            started = time.perf_counter()
            namespace.add_outputs(batch)
            seconds += time.perf_counter() - started
            added += sum(len(output.token_ids) for output in batch)
            print(f"{min(1.0, added / tokens):.4f}", flush=True)  # progress, see run_program
        started = time.perf_counter()
        segments = cache.compact()
        compacting = time.perf_counter() - started
        stats = cache.stats()
    new = list(itertools.islice(outputs, _STEPPED))  # the continuation of the stream
    np.savez(_texts_of(where), known=np.stack(known), new=np.stack(new))
    return {
        "add_us_per_token": seconds / added * 1e6,
        "segments": segments,
        "segment_bytes_per_token": stats.segment_bytes / added,
        "compact_us_per_token": compacting / added * 1e6,
        "folder_bytes_per_token": sum(p.stat().st_blocks * 512 for p in where.rglob("*")) / added,
        "peak_resident_bytes": _resident()["VmHWM"],
    }


def open_and_draft(folder: str) -> dict[str, Any]:
    """Open the folder, draft once, then write outputs token by token with a draft after each token."""
    with np.load(_texts_of(Path(folder))) as data:
        known, new = list(data["known"]), list(data["new"])
    before = _resident()
    started = time.perf_counter()
    with SuffixCache(folder) as cache:
        opened = time.perf_counter()
        after = _resident()
        namespace = cache.namespace(_NAMESPACE)
        with namespace.open_session(known[0][: len(known[0]) // 2]) as session:
            session.step([], _MAX_DRAFT, _COST)
            drafted = time.perf_counter()
            drafted_resident = _resident()
            session.close(commit=False)
        _steps(namespace, [*new, *known])  # touch all pages once before the timed steps
        return {
            "open_s": opened - started,
            "first_draft_s": drafted - started,
            "resident_bytes": after["VmRSS"] - before["VmRSS"],
            "resident_anonymous_bytes": after["RssAnon"] - before["RssAnon"],
            "first_draft_resident_bytes": drafted_resident["VmRSS"] - before["VmRSS"],
            "append_draft_us_new": _steps(namespace, new),
            "append_draft_us_known": _steps(namespace, known),
        }


def _texts_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.npz")


def _steps(namespace: Namespace, outputs: Sequence[TokenArray]) -> float:
    """Median microseconds of a step: append a token, draft."""
    taken = []
    for output in outputs:
        with namespace.open_session(output[:8]) as session:
            for i in range(8, len(output)):
                started = time.perf_counter()
                session.step(output[i : i + 1], _MAX_DRAFT, _COST)
                taken.append(time.perf_counter() - started)
            session.close(commit=False)
    return float(np.median(taken)) * 1e6


def _resident() -> dict[str, int]:
    """Resident bytes now and (VmHWM) at their peak, by their names in /proc; zeros without /proc."""
    status = Path("/proc/self/status")
    text = status.read_text(encoding="ascii", errors="replace") if status.exists() else ""
    found = dict(re.findall(r"^(VmRSS|VmHWM|RssAnon):\s*(\d+)", text, re.MULTILINE))
    return {name: 1024 * int(found.get(name, 0)) for name in ("VmRSS", "VmHWM", "RssAnon")}


if __name__ == "__main__":
    _, part, options = sys.argv
    parts: dict[str, Callable[..., dict[str, Any]]] = {"fill": fill, "open_and_draft": open_and_draft}
    print(json.dumps(parts[part](**json.loads(options))))

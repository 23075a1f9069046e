"""Worker process of :mod:`suffixsvc_bench.index.parts.peer`, run by the peer's own Python.

That environment has numpy and the peer, but nothing of this project.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

# Only the peer's environment has it.
from arctic_inference.suffix_decoding._C import SuffixTree  # type: ignore[import-not-found, unused-ignore]


def resident() -> int:
    """Resident bytes of this process."""
    with open("/proc/self/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * 4096


class Worker:
    """The peer's suffix tree with timed operations."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.tree: Any = SuffixTree(depth)
        self.next = self.first = 0

    def extend(self, outputs: list[Any]) -> dict[str, Any]:
        """Add outputs under new ids."""
        bytes_before = resident()
        start = time.perf_counter()
        for tokens in outputs:
            self.tree.extend_ndarray(self.next, tokens)
            self.next += 1
        return {"seconds": time.perf_counter() - start, "bytes": resident() - bytes_before}

    def remove(self, _outputs: list[Any], count: int) -> dict[str, Any]:
        """Remove the oldest ``count`` outputs."""
        start = time.perf_counter()
        for output in range(self.first, self.first + count):
            self.tree.remove(output)
        self.first += count
        return {"seconds": time.perf_counter() - start}

    def steps(self, outputs: list[Any], max_draft_tokens: int) -> dict[str, Any]:
        """Write outputs token by token, drafting each time; remove each output at its end."""
        append, draft = [], []
        for output in outputs:
            for i in range(len(output)):
                context = output[max(0, i + 1 - self.depth) : i + 1]
                a = time.perf_counter()
                self.tree.extend_ndarray(self.next, output[i : i + 1])
                b = time.perf_counter()
                self.tree.speculate_ndarray(context, max_draft_tokens, 1.0, 0.0, 0.1, False)
                c = time.perf_counter()
                append.append(b - a)
                draft.append(c - b)
            self.tree.remove(self.next)
            self.next += 1
        return {"append": append, "draft": draft}


def outputs_of(path: str) -> Iterator[Any]:
    """Read the outputs of a request's file."""
    with np.load(path) as data:
        tokens, lengths = data["tokens"], data["lengths"]
    start = 0
    for n in lengths:
        yield np.ascontiguousarray(tokens[start : start + n])
        start += n


def main() -> None:
    """Answer requests, one JSON object per line, until standard input ends."""
    worker = Worker(int(sys.argv[1]))
    for line in sys.stdin:
        request = json.loads(line)
        method, outputs = getattr(worker, request["what"]), list(outputs_of(request["path"]))
        print(json.dumps(method(outputs, **request["arguments"])), flush=True)


if __name__ == "__main__":
    main()

"""Shared segments of tests, and programs that tests run as child processes:

segment_child.py golden FILE     writes the golden file
segment_child.py seal FOLDER     prints "ready", then builds and merges a.seg, b.seg and m.seg repeatedly
segment_child.py limited FILE    replaces FILE under limits of file sizes, which must fail
"""

from __future__ import annotations

import resource
import signal
import sys
from pathlib import Path
from random import Random

import numpy as np

from suffixsvc.core.segments import Segment, SegmentText, build_segment, merge_segments
from suffixsvc.errors import StoreFullError


def text(tokens: list[int], context: int, lsn: int) -> SegmentText:
    """A text of an output."""
    return SegmentText(np.array(tokens, dtype=np.int32), context, lsn)


#: of the golden file: the texts drawn in segment_format.h, one of them in two outputs; the limits of int32
GOLDEN_TEXTS = [
    text([100, 200, 300, 400], 1, 41),
    text([700, 200, 300], 0, 42),
    text([100, 200, 300, 400], 1, 43),
    text([2**31 - 1, 0, 2**31 - 1, 0, 2**31 - 1, 0], 2, 43),
]

#: outputs of the files that seal() writes
SEALED = {"a.seg": [1, 2, 3, 4, 5], "b.seg": [6, 7, 8], "m.seg": [1, 2, 3, 4, 5, 6, 7, 8]}


def seal(folder: Path) -> None:
    """Build and merge segments until killed."""
    random = Random(4)
    texts = [text([random.randrange(500) for _ in range(4_000)], 0, lsn) for lsn in SEALED["m.seg"]]
    print("ready", flush=True)
    while True:
        build_segment(folder / "a.seg", texts[:5])
        build_segment(folder / "b.seg", texts[5:])
        merge_segments(folder / "m.seg", [Segment(folder / "a.seg"), Segment(folder / "b.seg")])


def limited(path: Path) -> None:
    """Simulate a full disk by a limit on file sizes: the kernel fails the same calls, with EFBIG."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    random = Random(5)
    texts = [text([random.randrange(3_000) for _ in range(50_000)], 0, 1)]
    build_segment(path, texts)
    source = Segment(path)
    size = path.stat().st_size
    for limit in (0, 100, 4_096, size // 2, size - 4_096, size - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        for write in (lambda: build_segment(path, texts), lambda: merge_segments(path, [source])):
            try:
                write()
            except StoreFullError as error:
                if not error.got:
                    sys.exit(f"limit {limit}: {error}")
            else:
                sys.exit(f"limit {limit}: written")


if __name__ == "__main__":
    _, mode, where = sys.argv
    if mode == "golden":
        build_segment(where, GOLDEN_TEXTS, hub_min=2)
    elif mode == "seal":
        seal(Path(where))
    else:
        limited(Path(where))

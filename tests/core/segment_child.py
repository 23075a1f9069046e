"""Segments that tests share, and programs that tests run beside themselves:

segment_child.py golden FILE     writes the golden file
segment_child.py seal FOLDER     prints "ready", then seals and merges a.seg, b.seg and m.seg for ever
segment_child.py limited FILE    finds no room for a second FILE; exits with a message if that went unnoticed
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
    return SegmentText(np.array(tokens, dtype=np.int32), context, lsn)


#: of the golden file: the texts that segment_format.h draws, one of them in two outputs; the edges of int32
GOLDEN_TEXTS = [
    text([100, 200, 300, 400], 1, 41),
    text([700, 200, 300], 0, 42),
    text([100, 200, 300, 400], 1, 43),
    text([2**31 - 1, 0, 2**31 - 1, 0, 2**31 - 1, 0], 2, 43),
]

#: what the names that seal() writes hold
SEALED = {"a.seg": [1, 2, 3, 4, 5], "b.seg": [6, 7, 8], "m.seg": [1, 2, 3, 4, 5, 6, 7, 8]}


def seal(folder: Path) -> None:
    random = Random(4)
    texts = [text([random.randrange(500) for _ in range(4_000)], 0, lsn) for lsn in SEALED["m.seg"]]
    print("ready", flush=True)
    while True:
        build_segment(folder / "a.seg", texts[:5])
        build_segment(folder / "b.seg", texts[5:])
        merge_segments(folder / "m.seg", [Segment(folder / "a.seg"), Segment(folder / "b.seg")])


def limited(path: Path) -> None:
    """A limit on file sizes stands in for a full disk: the kernel refuses in the same places, with EFBIG."""
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

"""segment_fetching_child.py FOLDER FILE: opens a segment from a cache folder, and prints what it holds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import xxhash

from suffixsvc.types import SegmentRecord
from suffixsvc_follower.contents.segment_source import SegmentSource


def main() -> None:
    folder, file = map(Path, sys.argv[1:])
    data = file.read_bytes()
    fetched = 0

    def fetch(_namespace: str, _name: str, offset: int) -> Iterator[bytes]:
        nonlocal fetched
        fetched += 1
        for at in range(offset, len(data), 4096):
            time.sleep(0.002)
            yield data[at : at + 4096]

    source = SegmentSource(folder, 1 << 30, fetch)
    record = SegmentRecord(file.name, 1, 1 << 40, 1, 1, len(data))
    while (segment := source.open("a", record, xxhash.xxh3_128_digest(data[:512]), (), "")) is None:
        time.sleep(0.02)
    segment.check()
    print(fetched, len(segment.outputs()))


if __name__ == "__main__":
    main()

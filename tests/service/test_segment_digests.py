"""Digests of segment files, by which followers know them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import xxhash

from suffixsvc import Limits, SuffixCache
from suffixsvc.service.followers.segment_files import SegmentFiles
from suffixsvc.v1 import watch_pb2

PATH = "acme/sql"


def test_a_name_that_comes_again_has_the_digest_of_its_present_file(tmp_path: Path) -> None:
    """A segment that is rewritten twice has its first name again."""
    seen: defaultdict[str, set[bytes]] = defaultdict(set)
    with SuffixCache(tmp_path / "d", limits=Limits(seal_tokens=1000), background=False) as cache:
        files = SegmentFiles(cache.feed, 1 << 20)
        ids = [cache.namespace(PATH).add_output([1, 2, 3, i]) for i in range(10)]
        for output_id in ids[1:7]:
            cache.compact()
            message: watch_pb2.SealedContents = files.sealed_to_proto(PATH, cache.feed.sealed(PATH))
            [segment] = message.segments
            raw = (tmp_path / "d" / "segments" / segment.name).read_bytes()
            assert segment.header_digest == xxhash.xxh3_128_digest(raw[:512])
            seen[segment.name].add(segment.header_digest)
            cache.namespace(PATH).delete(output_ids=[output_id])
    assert any(len(digests) > 1 for digests in seen.values()), "no name came again"

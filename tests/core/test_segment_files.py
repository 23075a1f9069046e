"""Segment files: golden bytes, damage, interrupted writes."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random

import pytest
from segment_child import GOLDEN_TEXTS, SEALED, text

from suffixsvc.core import _ext
from suffixsvc.core.segments import (
    TEMPORARY_SUFFIX,
    Segment,
    SegmentJob,
    SegmentText,
    build_segment,
    merge_segments,
)
from suffixsvc.errors import (
    InvalidInputError,
    SegmentCancelledError,
    SegmentCorruptError,
    StoreCorruptError,
    StoreError,
    StoreForeignError,
    StoreFullError,
)
from support.segment_levels import levels_of
from support.segment_oracle import SegmentOracle

GOLDEN = Path(__file__).parents[1] / "golden" / "segment"
HEADER = 512


def fill(path: Path, n: int = 3_000, seed: int = 1) -> list[SegmentText]:
    """A segment with hubs, duplicates and several texts per output."""
    random = Random(seed)
    texts = [
        text([random.choice([1, 2, 3, 2**31 - 1]) for _ in range(n // 6)], random.choice([0, 3, 64]), lsn)
        for lsn in range(1, 6)
    ]
    texts += [text(texts[0].token_ids.tolist(), texts[0].context, 9), text([5, 5, 5], 0, 9)]
    build_segment(path, texts)
    return texts


def repair_checksums(raw: bytes) -> bytes:
    """Correct all checksums of a damaged file, so that only the meaning of its fields reveals the damage."""
    (file_bytes,) = struct.unpack_from("<Q", raw, 24)
    size = min(len(raw), file_bytes)
    # blocks and sums: the number of blocks b solves data + 4 b = size
    blocks = next((b for b in range(1, 1 + size // 4) if -(-(size - HEADER - 4 * b) // 65536) == b), 0)
    data = raw[HEADER : size - 4 * blocks]
    sums = b"".join(
        struct.pack("<I", _ext.crc32c(data[at : at + 65536])) for at in range(0, 65536 * blocks, 65536)
    )
    header = bytearray(raw[:HEADER])
    struct.pack_into("<I", header, 20, _ext.crc32c(sums))
    struct.pack_into("<I", header, 508, _ext.crc32c(bytes(header[:508])))
    return bytes(header) + data + sums


def use(path: Path) -> str:
    """Call all operations of a file; returns "sound" or the name of the typed error."""
    try:
        segment = Segment(path, [2])
        for context in ([1, 2], [3, 2**31 - 1, 1, 2, 3], [5, 5, 5], [9], [2] * 70):
            for level in levels_of(segment, context, width=8, tokens=[1, 2, 5]):
                assert 1 <= level.length <= 64
                assert all(token >= 0 for token, _ in level.strongest)
        segment.correct_hubs()
        merge_segments(path.with_name("merged"), [segment])
        segment.check()
    except (StoreCorruptError, StoreForeignError) as error:
        return type(error).__name__
    return "sound"


def test_the_checksum_is_crc32c() -> None:
    """Known values of RFC 3720 and of the catalogue of CRC algorithms; both ways of computing it."""
    known = {b"123456789": 0xE3069283, b"\0" * 32: 0x8A9136AA, b"\xff" * 32: 0x62A8AB43, b"": 0}
    for data, crc in known.items():
        assert _ext.crc32c(data) == crc
        assert _ext.crc32c_portable(data) == crc
    random = Random(5)
    for n in range(70):
        data = random.randbytes(n)
        assert _ext.crc32c(data) == _ext.crc32c_portable(data)


def test_bytes_are_those_of_the_golden_file(tmp_path: Path) -> None:
    build_segment(tmp_path / "golden.seg", GOLDEN_TEXTS, hub_min=2)
    assert (tmp_path / "golden.seg").read_bytes() == (GOLDEN / "v1.seg").read_bytes()


def test_the_golden_file_reads_back() -> None:
    segment = Segment(GOLDEN / "v1.seg")
    segment.check()
    assert segment.outputs() == [41, 42, 43]
    (two, one) = levels_of(segment, [100, 200], [1, 2], tokens=[300, 700])
    assert (two.length, two.entries, two.total, two.strongest) == (2, 1, 2, [(300, 2)])
    assert (one.length, one.entries, one.total, one.votes, one.newest) == (1, 2, 3, [3, 0], (300, 43))
    (edges,) = levels_of(segment, [2**31 - 1, 0, 2**31 - 1], [3])
    assert (edges.length, edges.total, edges.newest) == (3, 2, (0, 43))
    stats = segment.stats()
    assert (stats.first_lsn, stats.last_lsn, stats.tokens, stats.texts, stats.occurrences) == (
        41,
        43,
        10,
        3,
        4,
    )


def test_the_worked_example_of_the_documentation_is_the_golden_file() -> None:
    """Every line of hex in docs/format.md is what the golden file has at its offset."""
    page = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    example = page.split("```segment\n")[1].split("```")[0]
    golden = (GOLDEN / "v1.seg").read_bytes()
    lines = 0
    for line in example.splitlines():
        offset, _, rest = line.partition(": ")
        raw = bytes.fromhex(rest.split("  ")[0])
        assert golden[int(offset) : int(offset) + len(raw)] == raw, line
        lines += 1
    assert lines > 10


def test_every_flipped_byte_of_the_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.seg"
    fill(path)
    sound = path.read_bytes()
    for at in range(HEADER):
        for flip in (0x01, 0x80, 0xFF):
            raw = bytearray(sound)
            raw[at] ^= flip
            path.write_bytes(raw)
            with pytest.raises((SegmentCorruptError, StoreForeignError)):
                Segment(path)


def test_wrong_header_fields_with_a_correct_checksum(tmp_path: Path) -> None:
    path = tmp_path / "x.seg"
    fill(path)
    sound = path.read_bytes()
    random = Random(11)
    for at in range(0, 80, 4):
        (value,) = struct.unpack_from("<I", sound, at)
        for lie in {0, 1, value + 1, value - 1, value * 2, 2**32 - 1, random.getrandbits(32)} - {value}:
            raw = bytearray(sound)
            struct.pack_into("<I", raw, at, lie & 0xFFFFFFFF)
            struct.pack_into("<I", raw, 508, _ext.crc32c(bytes(raw[:508])))
            path.write_bytes(raw)
            outcome = use(path)
            # 60: hub_min, which has no effect if no context was seen that often.
            assert outcome != "sound" or at == 60, (at, lie)
            if at == 8:
                assert outcome == "StoreForeignError"


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    """Any flipped byte gives an error or, until its block is read, correct answers."""
    path = tmp_path / "x.seg"
    texts = fill(path)
    sound = path.read_bytes()
    oracle = SegmentOracle([(t.token_ids.tolist(), t.context, t.output_id) for t in texts], {2})
    truth = [(r.length, r.votes.total()) for r in oracle.query([1, 2, 3])]
    random = Random(12)
    for at in [*range(HEADER, HEADER + 64), *(random.randrange(HEADER, len(sound)) for _ in range(300))]:
        raw = bytearray(sound)
        raw[at] ^= 1 << random.randrange(8)
        path.write_bytes(raw)
        try:
            segment = Segment(path, [2])
        except SegmentCorruptError:
            continue
        found = levels_of(segment, [1, 2, 3])
        assert [(r.length, r.total) for r in found] == truth or (segment.corrupt and not found)
        with pytest.raises(SegmentCorruptError):
            segment.check()
        assert segment.corrupt
        assert levels_of(segment, [1, 2, 3]) == []


def test_damage_with_correct_checksums_never_crashes(tmp_path: Path) -> None:
    """Random bytes anywhere, with correct checksums: a typed error, or well-formed answers."""
    path = tmp_path / "x.seg"
    fill(path)
    sound = path.read_bytes()
    random = Random(13)
    outcomes = set()
    for _ in range(400):
        raw = bytearray(sound)
        for _ in range(random.choice([1, 1, 2, 20])):
            at = random.randrange(HEADER, len(raw))
            raw[at] = random.choice([0, 1, 255, random.randrange(256)])
        path.write_bytes(repair_checksums(bytes(raw)))
        outcomes.add(use(path))
    assert outcomes <= {"sound", "SegmentCorruptError"}
    assert "SegmentCorruptError" in outcomes


def test_repairing_a_sound_file_changes_nothing(tmp_path: Path) -> None:
    fill(tmp_path / "x.seg")
    raw = (tmp_path / "x.seg").read_bytes()
    assert repair_checksums(raw) == raw


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.seg"
    fill(path, 600)
    sound = path.read_bytes()
    for size in [*range(600), *range(600, len(sound), 61), len(sound) - 1]:
        path.write_bytes(sound[:size])
        with pytest.raises((SegmentCorruptError, StoreForeignError)):
            Segment(path)
    path.write_bytes(sound + b"\0")
    with pytest.raises(SegmentCorruptError, match="length does not match"):
        Segment(path)


@pytest.mark.parametrize(
    ("raw", "error", "message"),
    [
        (b"", StoreForeignError, "not a segment"),
        (b"SQLite format 3\0" + bytes(600), StoreForeignError, "not a segment"),
        (b"SXSEG\r\n\x1a", SegmentCorruptError, "truncated"),
        (b"SXSEG\n\x1a" + bytes(600), StoreForeignError, "not a segment"),  # line ends were converted
    ],
)
def test_foreign_files(tmp_path: Path, raw: bytes, error: type[Exception], message: str) -> None:
    (tmp_path / "x.seg").write_bytes(raw)
    with pytest.raises(error, match=message):
        Segment(tmp_path / "x.seg")


def test_a_newer_version_is_foreign_and_named(tmp_path: Path) -> None:
    raw = bytearray((GOLDEN / "v1.seg").read_bytes())
    struct.pack_into("<I", raw, 8, 2)
    struct.pack_into("<I", raw, 508, _ext.crc32c(bytes(raw[:508])))
    (tmp_path / "x.seg").write_bytes(raw)
    with pytest.raises(StoreForeignError) as caught:
        Segment(tmp_path / "x.seg")
    assert (caught.value.expected, caught.value.got) == ("1", "2")
    assert caught.value.remedy


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened") as caught:
        Segment(tmp_path / "nothing.seg")
    assert caught.value.got == os.strerror(errno.ENOENT)
    os.mkfifo(tmp_path / "pipe.seg")  # opening it to read would wait for a writer
    for other in (tmp_path, tmp_path / "pipe.seg"):
        with pytest.raises(StoreForeignError, match="regular file"):
            Segment(other)
    with pytest.raises(InvalidInputError):
        Segment("a\0b")


# ---------------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize(
    "bad",
    [
        text([1, 2], 2, 1),
        text([1, 2], 3, 1),
        text([], 0, 1),
        text([1, -1], 0, 1),
        text([1], -1, 1),
        text([1], 0, -1),
        text([1], 0, 2**64),
    ],
)
def test_bad_texts_are_refused_and_leave_nothing(tmp_path: Path, bad: SegmentText) -> None:
    with pytest.raises(InvalidInputError):
        build_segment(tmp_path / "x.seg", [text([1, 2, 3], 0, 1), bad])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("orders", [[0], [2, 1], [1, 1], [65], list(range(1, 13))])
def test_invalid_orders_are_refused(orders: list[int]) -> None:
    with pytest.raises(InvalidInputError):
        levels_of(Segment(GOLDEN / "v1.seg"), [1], orders)


def test_a_cancelled_job_leaves_nothing(tmp_path: Path) -> None:
    job = SegmentJob()
    job.cancel()
    texts = [text([1, 2, 3] * 50, 0, i) for i in range(3)]
    with pytest.raises(SegmentCancelledError):
        build_segment(tmp_path / "x.seg", texts, job=job)
    assert list(tmp_path.iterdir()) == []
    done = SegmentJob()
    build_segment(tmp_path / "y.seg", texts, job=done)
    assert done.done == 1.0
    with pytest.raises(SegmentCancelledError):
        merge_segments(tmp_path / "x.seg", [Segment(tmp_path / "y.seg")], job=job)
    assert [p.name for p in tmp_path.iterdir()] == ["y.seg"]


def run_child(mode: str, where: Path) -> list[str]:
    return [sys.executable, str(Path(__file__).with_name("segment_child.py")), mode, str(where)]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x.seg"
    subprocess.run(run_child("limited", path), check=True)
    assert [p.name for p in tmp_path.iterdir()] == ["x.seg"]
    Segment(path).check()


def test_an_unwritable_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot create") as caught:
        build_segment(tmp_path / "missing" / "x.seg", GOLDEN_TEXTS)
    assert not isinstance(caught.value, StoreFullError)


@pytest.mark.crash
def test_kill_while_building_never_shows_half_a_segment(tmp_path: Path) -> None:
    """SIGKILL at random moments of builds and merges: every name has a whole segment or no file."""
    random = Random(21)
    leftovers = 0
    for _ in range(12):
        with subprocess.Popen(run_child("seal", tmp_path), stdout=subprocess.PIPE) as victim:
            assert victim.stdout is not None
            assert victim.stdout.readline() == b"ready\n"
            time.sleep(random.random() * 0.15)
            victim.kill()
        for path in tmp_path.iterdir():
            if path.name.endswith(TEMPORARY_SUFFIX):
                leftovers += 1
                path.unlink()
            else:
                segment = Segment(path)
                segment.check()
                assert segment.outputs() == SEALED[path.name]
    assert leftovers > 0  # some were killed in the middle


@pytest.fixture
def busy_segment(tmp_path: Path) -> Segment:
    fill(tmp_path / "x.seg", 20_000)
    return Segment(tmp_path / "x.seg")


def test_concurrent_readers_forgets_corrections_checks_and_merges(
    busy_segment: Segment, tmp_path: Path
) -> None:
    segment = busy_segment
    stop = threading.Event()
    failures: list[str] = []

    def read() -> None:
        random = Random()
        while not stop.is_set():
            context = [random.choice([1, 2, 3]) for _ in range(6)]
            for level in levels_of(segment, context, tokens=[1, 2, 3]):
                if level.total > 22_000 or sum(level.votes) > 22_000:
                    failures.append(f"{level}")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for lsn in (1, 2, 9, 4, 5, 3):
        segment.forget([lsn])
        merge_segments(tmp_path / "merged.seg", [segment])
        Segment(tmp_path / "merged.seg").check()
        segment.correct_hubs()
        segment.check()
    stop.set()
    for reader in readers:
        reader.join()
    assert failures == []
    assert levels_of(segment, [1, 2]) == []
    assert segment.outputs() == []

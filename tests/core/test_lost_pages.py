"""Mapped segments whose pages cannot be read any more: truncated while in use, which acts like a
failing disk.

Tests that may end the process run in a child process. In addition, ``core_stress`` (``make sanitize``)
removes pages from segments that threads read.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from suffixsvc.core.segments import Segment, SegmentText, build_segment, merge_segments
from suffixsvc.errors import SegmentCorruptError
from support.segment_levels import levels_of

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

LENGTH = 60_000
TESTS = Path(__file__).parents[1]

PRELUDE = """
import faulthandler, mmap, os, resource, signal, sys, tempfile
import numpy as np
from suffixsvc.core.segments import Segment, SegmentText, build_segment, reinstall_sigbus_handler
sys.path.insert(0, sys.argv[2])
from support.segment_levels import levels_of

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
folder = sys.argv[1]

def cut_segment(name):
    path = os.path.join(folder, name)
    text = np.random.default_rng(1).integers(0, 30_000, 60_000).astype(np.int32)
    build_segment(path, [SegmentText(text, 0, 1)])
    segment = Segment(path)
    os.truncate(path, 4096)
    return segment, text

def lose(name):
    segment, text = cut_segment(name)
    assert levels_of(segment, text[1000:1064].tolist()) == []
    assert segment.corrupt
    print("survived", flush=True)

def another_fault():
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(8192)
        view = mmap.mmap(file.fileno(), 8192)
        file.truncate(0)
        view[5000]

def caught():
    for line in open("/proc/self/status"):
        if line.startswith("SigCgt"):
            return bool(int(line.split()[1], 16) >> (signal.SIGBUS - 1) & 1)
"""


def in_a_process(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code), str(folder), str(TESTS)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def text_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 30_000, LENGTH).astype(np.int32)


def segment_at(path: Path, seed: int) -> Segment:
    build_segment(path, [SegmentText(text_of(seed), 0, seed)])
    return Segment(path)


@pytest.mark.parametrize("left", [0, 4096, 200_000], ids=["nothing", "a page", "a part"])
def test_a_truncated_segment_is_corrupt_and_does_not_end_the_process(tmp_path: Path, left: int) -> None:
    """A mapped segment that was truncated, or lay on a failing disk, ended the process with SIGBUS at the
    next draft that read it: all sessions of the service were lost with their live text. Its lost pages are
    replaced by zeros, and it is marked corrupt, so that it is built again from the log."""
    result = in_a_process(
        tmp_path,
        f"""
        segment, text = cut_segment("cut.seg")
        os.truncate(os.path.join(folder, "cut.seg"), {left})
        queried = 0
        while not segment.corrupt:
            queried += 1
            start = queried * 97 % 50_000
            levels_of(segment, text[start:start + 64].tolist())
        assert levels_of(segment, text[1000:1064].tolist()) == []
        print("survived", flush=True)
        """,
    )
    assert (result.returncode, result.stdout) == (0, "survived\n"), result.stderr


def test_nothing_is_merged_from_a_segment_whose_pages_are_lost(tmp_path: Path) -> None:
    whole, cut = segment_at(tmp_path / "whole.seg", 1), segment_at(tmp_path / "cut.seg", 2)
    cut.check()  # every block was verified
    os.truncate(cut.path, 8192)
    with pytest.raises(SegmentCorruptError, match="cut"):
        merge_segments(tmp_path / "merged.seg", [whole, cut])
    assert cut.corrupt
    assert not whole.corrupt
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cut.seg", "whole.seg"]


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="punches holes with fallocate(1)")
def test_zeros_without_a_fault_are_not_merged(tmp_path: Path) -> None:
    """A hole in the file reads as zeros without a fault: all blocks are verified again before a merge."""
    whole = segment_at(tmp_path / "hole.seg", 3)
    whole.check()
    size = whole.path.stat().st_size
    punched = subprocess.run(
        [
            "fallocate",
            "--punch-hole",
            "--offset",
            str(size // 2 // 4096 * 4096),
            "--length",
            "4096",
            whole.path,
        ],
        capture_output=True,
        check=False,
    )
    if punched.returncode:
        pytest.skip(f"this file system has no holes: {punched.stderr!r}")
    with pytest.raises(SegmentCorruptError, match="hole"):
        merge_segments(tmp_path / "merged.seg", [whole])
    assert whole.corrupt
    assert not (tmp_path / "merged.seg").exists()


def test_a_segment_that_is_truncated_while_it_is_checked_or_corrected(tmp_path: Path) -> None:
    for job in ("check", "correct_hubs", "outputs", "take_recently_used"):
        segment = segment_at(tmp_path / f"{job}.seg", 4)
        segment.forget([4])
        os.truncate(segment.path, 4096)
        try:
            getattr(segment, job)()
        except SegmentCorruptError:
            assert job == "check"
        else:
            assert job != "check"


def test_a_process_without_segments_keeps_its_handlers(tmp_path: Path) -> None:
    result = in_a_process(
        tmp_path,
        """
        from suffixsvc import SuffixCache
        with SuffixCache() as cache:
            with cache.namespace("a").open_session([1, 2, 3]) as session:
                session.step([4], 4)
        reinstall_sigbus_handler()
        assert not caught()
        lose("a.seg")
        assert caught()
        """,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "before",
    [
        "",
        "faulthandler.enable(); lose('a.seg')",
        "lose('a.seg'); faulthandler.enable(); reinstall_sigbus_handler()",
    ],
    ids=["no segment", "faulthandler before", "faulthandler after"],
)
def test_any_other_fault_ends_the_process_as_before(tmp_path: Path, before: str) -> None:
    """With SIGBUS, so that there is a core dump, and with the report of faulthandler, once."""
    result = in_a_process(
        tmp_path, f"{before}\nif {before!r}: lose('b.seg')\nanother_fault()\nprint('went on')"
    )
    assert result.returncode == -signal.SIGBUS, result
    assert "went on" not in result.stdout
    assert result.stdout.count("survived") == before.count("lose") + bool(before)
    assert result.stderr.count("Fatal Python error: Bus error") == bool(before)
    if before:
        assert "another_fault" in result.stderr


@pytest.mark.parametrize("how", ["os.kill(os.getpid(), signal.SIGBUS)", "signal.raise_signal(signal.SIGBUS)"])
def test_a_signal_that_was_sent_is_not_taken_for_a_fault(tmp_path: Path, how: str) -> None:
    result = in_a_process(tmp_path, f"lose('a.seg'); {how}; print('went on')")
    assert result.returncode == -signal.SIGBUS, result
    handled = in_a_process(
        tmp_path,
        f"""
        signal.signal(signal.SIGBUS, lambda *_: print("handled", flush=True))
        lose("a.seg")
        {how}
        reinstall_sigbus_handler()
        {how}
        lose("b.seg")
        """,
    )
    assert handled.returncode == 0, handled.stderr
    assert handled.stdout == "survived\nhandled\nhandled\nsurvived\n"


def test_a_handler_that_was_installed_later_is_called_after_ours(tmp_path: Path) -> None:
    result = in_a_process(
        tmp_path,
        """
        lose("a.seg")
        faulthandler.enable()
        lose("b.seg")  # opening it puts the handler in front again
        late = cut_segment("c.seg")
        faulthandler.disable(); faulthandler.enable()
        reinstall_sigbus_handler()
        assert levels_of(late[0], late[1][1000:1064].tolist()) == []
        print("survived", flush=True)
        """,
    )
    assert (result.returncode, result.stdout) == (0, "survived\n" * 3), result.stderr
    assert "Bus error" not in result.stderr


def test_a_forked_child_survives_too(tmp_path: Path) -> None:
    result = in_a_process(
        tmp_path,
        """
        segment, text = cut_segment("a.seg")
        child = os.fork()
        if child == 0:
            assert levels_of(segment, text[1000:1064].tolist()) == []
            lose("b.seg")
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert not segment.corrupt  # the child's pages are separate
        assert levels_of(segment, text[1000:1064].tolist()) == []
        """,
    )
    assert result.returncode == 0, result.stderr


def test_many_segments_come_and_go(tmp_path: Path) -> None:
    """Ranges are reused: a lost page marks only the segment that has it."""
    kept = segment_at(tmp_path / "kept.seg", 5)
    for i in range(30):
        lost = segment_at(tmp_path / f"{i}.seg", 6)
        if i % 3 == 0:
            os.truncate(lost.path, 4096)
            levels_of(lost, text_of(6)[100:164].tolist())
            assert lost.corrupt
    assert not kept.corrupt
    kept.check()

"""Builds that are killed repeatedly and resumed give the files of an undisturbed build."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from suffixsvc import SuffixCache
from support.build_logs import Call, synthetic_calls, write_log
from support.engine_parts import parts_of
from support.forking import ForkServer
from support.long_form import rounds

pytestmark = pytest.mark.crash

CALLS = synthetic_calls(11, 1200)
#: kills in total, and at most for one build, which then completes
KILLS = rounds(3, full=6)

#: all files in the folder of a finished build
MADE = ["d.bin", "d.bin.manifest.json", "data", "s.bin", "s.bin.manifest.json"]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("logs") / "calls.jsonl", CALLS)


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer(Path(__file__).with_name("build_child.py"))
    yield server
    server.close()


def arguments(log: Path, folder: Path, workers: int) -> list[str]:
    return [
        *(str(log), "--lookup-static", str(folder / "s.bin"), "--lookup-dynamic", str(folder / "d.bin")),
        *("--data", str(folder / "data"), "--namespace", "acme/logs", "--checkpoint", "0.1"),
        *("--workers", str(workers)),
    ]


def outcome(server: ForkServer, args: list[str], kill_after: float | None) -> str:
    """Output of a build; "" if it was killed."""
    said: list[str] = []
    status = server.run({"arguments": args}, said.append, kill_after)
    assert status in (1, -signal.SIGKILL)
    ends = [line for line in said if line.startswith("code ")]
    # killed after the end of the build, before it printed the result
    assert all(line.startswith("code 0 ") or "s.bin exists" in line for line in ends), said
    return ends[0] if ends else ""


def caches(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("s.bin", "d.bin")}


def corpus(folder: Path) -> list[Call]:
    """Outputs of the namespace in order; also checks the folder."""
    with SuffixCache(folder / "data") as cache:
        cache.check()
        held = list(parts_of(cache).store.scan("acme/logs"))
    assert [stored.output_id for stored in held] == sorted(stored.output_id for stored in held)
    return [
        Call(
            stored.output.token_ids.tolist(), stored.output.prompt_tail.tolist(),
            stored.output.labels.get("agent", ""),
        )
        for stored in held
    ]  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(
    server: ForkServer, log: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, bytes], float]:
    """Files of an undisturbed build, and its duration in seconds."""
    folder = tmp_path_factory.mktemp("undisturbed")
    began = time.monotonic()
    assert outcome(server, arguments(log, folder, 1), None)
    seconds = time.monotonic() - began
    assert corpus(folder) == [call for call in CALLS if call.response]
    return caches(folder), seconds


@pytest.mark.parametrize("workers", [1, 2])
def test_a_build_that_is_killed_at_any_time_is_resumed(
    workers: int, server: ForkServer, log: Path, undisturbed: tuple[dict[str, bytes], float], tmp_path: Path
) -> None:
    files, longest = undisturbed
    random = Random(workers)
    kills = builds = 0
    while kills < KILLS:
        builds += 1
        folder = tmp_path / str(builds)
        folder.mkdir()
        args, said, lives = arguments(log, folder, workers), "", 0
        while not said:
            said = outcome(server, args, random.uniform(0.02, longest) if lives < KILLS else None)
            lives += 1
        kills += lives - 1
        longest = longest if lives > 2 else longest * 0.7  # the machine is faster than before
        assert caches(folder) == files
        assert corpus(folder) == [call for call in CALLS if call.response]
        assert sorted(path.name for path in folder.iterdir()) == MADE


def test_a_build_that_was_killed_while_it_loaded_the_corpus_needs_no_force(
    server: ForkServer, log: Path, undisturbed: tuple[dict[str, bytes], float], tmp_path: Path
) -> None:
    """The build refused to replace the lookup caches that it had written before."""
    args = arguments(log, tmp_path, 1)
    said = ""
    for _ in range(100):
        if (tmp_path / "d.bin").exists():
            break
        said = outcome(server, args, undisturbed[1] / 3)
    while not said:
        said = outcome(server, args, None)
    assert caches(tmp_path) == undisturbed[0]
    assert corpus(tmp_path) == [call for call in CALLS if call.response]


#: ``suffixsvc`` whose builds have small batches
_SMALL_BATCHES = """
import sys, time
from suffixsvc_caches.counting import batches, local
import suffixsvc_cli as cli

batches.BATCH_CALLS = 40
"""
#: its threads wait for the signal once the journal names a run: the build would end before the signal came
_WAITING = """
next_batch = local._BatchQueue._next

def wait_for_the_signal(queue):
    time.sleep(0.05)  # a run is written after 0.1 seconds
    while queue._journal.runs() and not queue.stopped:
        time.sleep(0.01)
    return next_batch(queue)

local._BatchQueue._next = wait_for_the_signal
"""


@pytest.mark.parametrize("hits", [1, 2])
def test_ctrl_c_keeps_what_was_counted(hits: int, log: Path, tmp_path: Path) -> None:
    """Exit code 130, one line, and the next run resumes."""
    work = tmp_path / "work"
    arguments = ["build", str(log), "--workers", "2", "--json", "--checkpoint", "0.1"]
    arguments += ["--lookup-static", str(tmp_path / "s.bin"), "--work", str(work)]

    def command(code: str) -> list[str]:
        return [sys.executable, "-c", f"{code}sys.exit(cli.main())", *arguments]

    code, output = interrupted(command(_SMALL_BATCHES + _WAITING), work / "journal.jsonl", hits)
    assert code == 130, output
    assert output.splitlines()[-1:] == ["interrupted"]
    assert f"progress is stored in {work}" in output
    resumed = subprocess.run(command(_SMALL_BATCHES), capture_output=True, text=True, check=True)
    done = json.loads(resumed.stdout)
    assert done["tokens"] == sum(len(call.response) for call in CALLS)
    assert 0 < done["resumed_tokens"] < done["tokens"]
    assert not work.exists()


def interrupted(command: list[str], journal: Path, hits: int) -> tuple[int, str]:
    """Interrupt a build after its journal names a run; return its exit code and stderr."""
    # Background processes of a shell without job control ignore SIGINT, which child processes inherit.
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, heard)
    try:
        while process.poll() is None and not names_a_run(journal):
            time.sleep(0.01)
        for _ in range(hits):
            process.send_signal(signal.SIGINT)
        _, output = process.communicate(timeout=300)
    finally:
        process.kill()  # after a failure
    return process.returncode, output


def names_a_run(journal: Path) -> bool:
    try:
        return '"runs"' in journal.read_text()
    except FileNotFoundError:  # the build has not begun, or has ended
        return False

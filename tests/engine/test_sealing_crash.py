"""Processes are killed with SIGKILL at every step of sealing, merging, repairing and forgetting."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from sealing_child import LIMITS, output_of
from sealing_testing import NS, files, ngram_oracle, ngrams, open_cache

from support.engine_parts import parts_of
from support.forking import ForkServer
from support.long_form import rounds
from support.stored import stored_outputs

pytestmark = pytest.mark.crash

POINTS = ["seal-read", "seal-built", "seal-entered", "seal-published", "seal-done", "repair-dropped"]
POINTS += ["merge-built", "merge-entered", "merge-published", "merge-removed"]
POINTS += ["begun", "written", "committed", "acknowledged"]
#: runs on one folder, in order; "" is a kill at a random time, with the background thread
LIVES = [*POINTS, *[""] * 10]
FOLDERS = rounds(1, full=3)


class Truth:
    """What the killed processes of one folder acknowledged, and what they were about to do."""

    def __init__(self) -> None:
        self.promised: dict[int, int] = {}  # id -> seed
        self.forgotten: set[int] = set()
        self.begin_life()

    def begin_life(self) -> None:
        self.adding: dict[int, int] = {}  # first seed -> count
        self.forgetting: set[int] = set()
        self.killed_at = ""

    def hear(self, line: str) -> None:
        if line[:1] not in "+=-~!?":  # a row of the log
            return
        kind, *words = line.split()
        numbers = [int(word) for word in words if kind != "!"]
        if kind == "+":
            self.adding[numbers[0]] = numbers[1]
        elif kind == "=":
            assert self.adding.pop(numbers[0]) == len(numbers) - 1
            self.promised |= {output_id: numbers[0] + i for i, output_id in enumerate(numbers[1:])}
        elif kind == "-":
            self.forgetting = set(numbers)
        elif kind == "~":
            self.forgotten |= self.forgetting
            for output_id in self.forgetting:
                del self.promised[output_id]
            self.forgetting = set()
        elif kind == "!":
            self.killed_at = words[0]
        else:
            raise AssertionError(f"victim said {line!r}")

    def compare(self, folder: Path) -> None:
        """Open the folder of a killed process, and compare it with everything that was acknowledged."""
        with open_cache(folder, LIMITS) as cache:
            cache.check()
            rows = {stored.output_id: stored.output for stored in stored_outputs(cache, NS)}
            lost = self.promised.keys() - rows.keys() - self.forgetting
            assert not lost, f"acknowledged and lost: {sorted(lost)}"
            back = rows.keys() & self.forgotten
            assert not back, f"forgotten and back: {sorted(back)}"
            new = sorted(rows.keys() - self.promised.keys())
            seeds = [first + i for first, count in self.adding.items() for i in range(count)]
            assert len(new) in (0, len(seeds)), "half of a batch is there"
            self.promised |= dict(zip(new, seeds, strict=False))
            for output_id in self.forgetting - rows.keys():
                self.forgotten.add(output_id)
                del self.promised[output_id]
            for output_id, output in rows.items():
                wanted = output_of(self.promised[output_id])
                assert output.token_ids.tolist() == wanted.token_ids.tolist()
            # indexes and segments agree with the log
            for n in (1, 3):
                assert ngrams(cache, n) == ngram_oracle(list(rows.values()), n)
            stats = cache.namespace(NS).stats()
            assert stats.outputs == len(rows)
            store = parts_of(cache).store  # without namespaces if the child was killed before it wrote
            segments = [segment for record in store.namespaces() for segment in store.segments(record.path)]
            assert files(folder) == sorted(segment.name for segment in segments)


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer(Path(__file__).with_name("sealing_child.py"), patience_seconds=120.0)
    yield server
    server.close()


def damage(folder: Path, random: Random) -> bool:
    """Break a segment, so that the next open repairs it."""
    names = files(folder)
    if names:
        path = folder / "segments" / random.choice(names)
        raw = bytearray(path.read_bytes())
        raw[-1] ^= 1
        path.write_bytes(raw)
    return bool(names)


@pytest.mark.parametrize("number", range(FOLDERS))
def test_kill_9_at_every_step(fork_server: ForkServer, tmp_path: Path, number: int) -> None:
    """No acknowledged output is lost, no deleted one comes back, no file is left over."""
    seed = int(os.environ.get("SEALING_CRASH_SEED", Random().randrange(10_000))) + number
    print(f"SEALING_CRASH_SEED={seed - number}")
    random = Random(seed)
    truth = Truth()
    folder = tmp_path / "data"
    for life, point in enumerate(LIVES):
        if point == "repair-dropped":
            with open_cache(folder, LIMITS) as cache:
                cache.seal()
            assert damage(folder, random)
        order = {
            "folder": str(folder),
            "seed": seed * 100 + life,
            "point": point or None,
            "hits": 1 if point == "repair-dropped" else random.randrange(1, 5),
            "background": not point,
        }
        truth.begin_life()
        status = fork_server.run(order, truth.hear, None if point else random.uniform(0.05, 0.5))
        assert status == -signal.SIGKILL
        assert truth.killed_at == point
        truth.compare(folder)
    assert truth.promised
    assert truth.forgotten

"""In which order bench decode has its ways answer, and on what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from suffixsvc_bench.decode.jobs import Job, Workload, Written
from suffixsvc_bench.decode.outcome import Outcome
from suffixsvc_bench.decode.run import run_workload
from suffixsvc_bench.decode.told import AddedUpClock, ToldTarget
from suffixsvc_bench.decode.turns import Answering, Stopwatch, in_turns, timed
from suffixsvc_bench.decode.variants import DriverVariant, settings_for
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.model_class import ModelClass
from suffixsvc_driver.sampling import GREEDY

from suffixsvc.engine import SuffixCache
from suffixsvc.errors import ModelError
from suffixsvc.types import BackendNamespace


class Scripted:
    """Writes four tokens, two at a step, and notes when on which target."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen
        self.begun: list[tuple[str, int, int]] = []

    def begin(self, workload: str, warming: Sequence[Written], turn: int) -> None:
        self.begun.append((workload, len(warming), turn))

    def answering(self, job: Job, target: Any) -> Answering:
        for _ in range(2):
            self.seen.append(f"{job.key}:{self.name}:{target}")
            yield 2
        return Outcome(4, 2.0 if self.name == "plain" else 1.0)


class Peer:
    """Answers at once."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    def begin(self, workload: str, warming: Sequence[Written], turn: int) -> None:
        pass

    def answer(self, job: Job) -> Outcome:
        self.seen.append(f"{job.key}:{self.name}")
        return Outcome(4, 0.5)


TARGETS: Any = ("A", "B", "C")


def ignore(prompt_ids: Sequence[int]) -> None:
    """Nothing to make ready."""


def jobs(n: int) -> list[Job]:
    return [Job("w", f"j{i}", "agent", (1, 2), 8) for i in range(n)]


def test_ways_begin_every_round_anew_and_change_targets_from_job_to_job() -> None:
    seen: list[str] = []
    plain, way, other = (Scripted(name, seen) for name in ("plain", "way", "other"))
    warming = [Written(jobs(1)[0], (5,))]
    prompts: list[Sequence[int]] = []
    pairs = run_workload(Workload("w", jobs(3), warming), plain, [way, other], [], TARGETS, 2, prompts.append)
    assert list(dict.fromkeys(seen[:18])) == [
        *("j0:plain:A", "j0:way:B", "j0:other:C"),
        *("j1:way:A", "j1:other:B", "j1:plain:C"),
        *("j2:other:A", "j2:plain:B", "j2:way:C"),
    ]
    assert way.begun == [("w", 1, 0), ("w", 1, 1)]
    assert prompts == [(1, 2)] * 6
    assert [p.job for p in pairs["way"]] == ["j0", "j1", "j2"] * 2
    assert all(p.ratio == 2.0 for p in pairs["way"])


def test_a_setting_begins_with_a_memory_of_its_own_every_time() -> None:
    """Also where name, workload and turn are the same, as at another temperature."""
    [setting] = settings_for(
        policies=["expected-gain"], ks=[], layers=["all"], sampling=GREEDY, model_class=ModelClass.DENSE_SMALL
    )
    curve = CostCurve.linear(0.1, 8, seconds_per_step=0.03)
    opened: list[str] = []
    with SuffixCache() as cache:

        def memory(name: str) -> BackendNamespace:
            opened.append(name)
            return cache.namespace(name)

        shape = ToldTarget(100, frozenset(), curve, AddedUpClock())
        for _ in range(2):
            way = DriverVariant(setting, curve, shape, memory)
            for _ in range(2):
                way.begin("sql", [], 0)
    assert len(set(opened)) == len(opened) == 4


def test_ways_that_cannot_stop_answer_before_the_others_or_behind_them() -> None:
    seen: list[str] = []
    ways: list[Any] = [[Scripted("way", seen)], [Peer("a", seen), Peer("b", seen)]]
    pairs = run_workload(Workload("w", jobs(2)), Scripted("plain", seen), *ways, TARGETS[:2], 1, ignore)
    assert [s for s in seen if s.count(":") == 1] == ["j0:a", "j0:b", "j1:a", "j1:b"]
    assert seen[4:8] == ["j0:a", "j0:b", "j1:a", "j1:b"]
    assert [p.ratio for p in pairs["b"]] == [4.0, 4.0]


def steps(name: str, tokens: Sequence[int], seen: list[str]) -> Answering:
    for n in tokens:
        seen.append(name)
        yield n
    return Outcome(sum(tokens), 1.0)


def test_a_program_that_fails_is_left_out_and_the_others_go_on() -> None:
    """It has answered one job by then; what it would have had to do with the others nobody knows."""

    class Failing(Peer):
        def answer(self, job: Job) -> Outcome:
            if job.key == "j1":
                raise ModelError("the server failed", got="500")
            return super().answer(job)

    class Absent(Peer):
        def begin(self, workload: str, warming: Sequence[Written], turn: int) -> None:
            raise ModelError("it is not there")

    seen: list[str] = []
    failed: list[tuple[str, str]] = []
    pairs = run_workload(
        Workload("w", jobs(3)),
        Scripted("plain", seen),
        [Scripted("way", seen)],
        [Peer("a", seen), Failing("b", seen), Absent("c", seen)],
        TARGETS[:2],
        2,
        ignore,
        on_failure=lambda way, error: failed.append((way, error.message)),
    )
    assert {name: len(of) for name, of in pairs.items()} == {"way": 6, "a": 6}
    assert failed == [("c", "it is not there"), ("b", "the server failed")]
    assert [s for s in seen if s.endswith(":b")] == ["j0:b"]


def test_the_answer_that_is_behind_goes_on() -> None:
    seen: list[str] = []
    found = in_turns([steps("a", [1] * 6, seen), steps("b", [4, 1, 1], seen)], turn_tokens=2)
    assert "".join(seen) == "aabaaaabb"
    assert [o.tokens for o in found] == [6, 6]


def test_an_answer_that_fails_ends_all() -> None:
    seen: list[str] = []

    def failing() -> Answering:
        yield 1
        raise OSError("gone")

    other = steps("b", [1] * 9, seen)
    with pytest.raises(OSError, match="gone"):
        in_turns([failing(), other], turn_tokens=1)
    assert seen == ["b"]
    with pytest.raises(StopIteration):
        next(other)


def test_a_stopwatch_runs_only_within_the_steps_it_times() -> None:
    now = 0.0
    watch = Stopwatch(lambda: now)

    def two() -> Iterator[float]:
        nonlocal now
        for _ in range(2):
            now += 1.0
            yield watch()

    marks = []
    for mark in timed(cast("Any", two()), watch):
        marks.append(mark)
        now += 10.0
        assert watch() == mark
    assert marks == [1.0, 2.0]
    assert watch() == 2.0

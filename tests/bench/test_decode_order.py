"""Order of answers in bench decode: interleaving, rounds, targets, failures of peers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from suffixsvc.engine import SuffixCache
from suffixsvc.errors import ModelError
from suffixsvc.types import BackendNamespace
from suffixsvc_bench.decode.options import DecodeOptions
from suffixsvc_bench.decode.run import run_workload
from suffixsvc_bench.decode.variants.variants import DriverVariant, settings_for
from suffixsvc_bench.decode.workload.interleaving import AnswerSteps, Stopwatch, interleave, timed
from suffixsvc_bench.decode.workload.jobs import AnsweredJob, Job, Workload
from suffixsvc_bench.decode.workload.replay_target import ReplayTarget, SimulatedClock
from suffixsvc_bench.speculation.paired import Outcome
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.sampling.settings import GREEDY
from suffixsvc_driver.settings.model_class import ModelClass


class Scripted:
    """Writes four tokens, two per step, and records each step and its target."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen
        self.begun: list[tuple[str, int, int]] = []

    def begin(self, workload: str, warmup: Sequence[AnsweredJob], round_number: int) -> None:
        self.begun.append((workload, len(warmup), round_number))

    def answering(self, job: Job, target: Any) -> AnswerSteps:
        for _ in range(2):
            self.seen.append(f"{job.key}:{self.name}:{target}")
            yield 2
        return Outcome(4, 2.0 if self.name == "plain" else 1.0)


class Peer:
    """Answers at once."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    def begin(self, workload: str, warmup: Sequence[AnsweredJob], round_number: int) -> None:
        pass

    def answer(self, job: Job) -> Outcome:
        self.seen.append(f"{job.key}:{self.name}")
        return Outcome(4, 0.5)


TARGETS: Any = ("A", "B", "C")


def ignore(prompt_ids: Sequence[int]) -> None:
    """A prefill that prepares nothing."""


def jobs(n: int) -> list[Job]:
    return [Job(f"j{i}", "agent", (1, 2), 8) for i in range(n)]


def test_variants_restart_every_round_and_change_targets_from_job_to_job() -> None:
    seen: list[str] = []
    plain, variant, other = (Scripted(name, seen) for name in ("plain", "one", "other"))
    warmup = [AnsweredJob(jobs(1)[0], (5,))]
    prompts: list[Sequence[int]] = []
    pairs = run_workload(
        Workload("w", jobs(3), warmup), plain, [variant, other], [], TARGETS, 2, prompts.append
    )
    assert list(dict.fromkeys(seen[:18])) == [
        *("j0:plain:A", "j0:one:B", "j0:other:C"),
        *("j1:one:A", "j1:other:B", "j1:plain:C"),
        *("j2:other:A", "j2:plain:B", "j2:one:C"),
    ]
    assert variant.begun == [("w", 1, 0), ("w", 1, 1)]
    assert prompts == [(1, 2)] * 6
    assert [p.job for p in pairs["one"]] == ["j0", "j1", "j2"] * 2
    assert all(p.ratio == 2.0 for p in pairs["one"])


def test_a_setting_starts_with_a_new_namespace_every_time() -> None:
    """Also if name, workload and round are the same, as at another temperature."""
    [setting] = settings_for(
        DecodeOptions((Path("m.gguf"),), policies=("expected-gain",), ks=(), layers=("all",)),
        GREEDY,
        ModelClass.DENSE_SMALL,
    )
    curve = CostCurve.linear(0.1, 8, seconds_per_step=0.03)
    opened: list[str] = []
    with SuffixCache() as cache:

        def memory(name: str) -> BackendNamespace:
            opened.append(name)
            return cache.namespace(name)

        shape = ReplayTarget(100, frozenset(), curve, SimulatedClock())
        for _ in range(2):
            variant = DriverVariant(setting, curve, shape, memory)
            for _ in range(2):
                variant.begin("sql", [], 0)
    assert len(set(opened)) == len(opened) == 4


def test_whole_variants_answer_before_or_after_the_others() -> None:
    seen: list[str] = []
    variants: list[Any] = [[Scripted("one", seen)], [Peer("a", seen), Peer("b", seen)]]
    stepwise, whole = variants
    pairs = run_workload(
        Workload("w", jobs(2)), Scripted("plain", seen), stepwise, whole, TARGETS[:2], 1, ignore
    )
    assert [s for s in seen if s.count(":") == 1] == ["j0:a", "j0:b", "j1:a", "j1:b"]
    assert seen[4:8] == ["j0:a", "j0:b", "j1:a", "j1:b"]
    assert [p.ratio for p in pairs["b"]] == [4.0, 4.0]


def steps(name: str, tokens: Sequence[int], seen: list[str]) -> AnswerSteps:
    for n in tokens:
        seen.append(name)
        yield n
    return Outcome(sum(tokens), 1.0)


def test_a_failing_program_is_excluded_and_the_run_continues() -> None:
    """Even if it answered one job before."""

    class Failing(Peer):
        def answer(self, job: Job) -> Outcome:
            if job.key == "j1":
                raise ModelError("the server failed", got="500")
            return super().answer(job)

    class Absent(Peer):
        def begin(self, workload: str, warmup: Sequence[AnsweredJob], round_number: int) -> None:
            raise ModelError("it is not there")

    seen: list[str] = []
    failed: list[tuple[str, str]] = []
    pairs = run_workload(
        Workload("w", jobs(3)),
        Scripted("plain", seen),
        [Scripted("one", seen)],
        [Peer("a", seen), Failing("b", seen), Absent("c", seen)],
        TARGETS[:2],
        2,
        ignore,
        on_failure=lambda variant, error: failed.append((variant, error.message)),
    )
    assert {name: len(of) for name, of in pairs.items()} == {"one": 6, "a": 6}
    assert failed == [("c", "it is not there"), ("b", "the server failed")]
    assert [s for s in seen if s.endswith(":b")] == ["j0:b"]


def test_the_answer_with_the_fewest_tokens_continues() -> None:
    seen: list[str] = []
    found = interleave([steps("a", [1] * 6, seen), steps("b", [4, 1, 1], seen)], slice_tokens=2)
    assert "".join(seen) == "aabaaaabb"
    assert [o.tokens for o in found] == [6, 6]


def test_an_answer_that_fails_ends_all() -> None:
    seen: list[str] = []

    def failing() -> AnswerSteps:
        yield 1
        raise OSError("gone")

    other = steps("b", [1] * 9, seen)
    with pytest.raises(OSError, match="gone"):
        interleave([failing(), other], slice_tokens=1)
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

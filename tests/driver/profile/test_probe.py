"""``suffixsvc probe``: what a curve makes possible, what of a machine matters, the verb on a real model."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import suffixsvc_cli as cli
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.speedup_estimate import (
    best_speedup,
    break_even_acceptance,
    break_even_step_seconds,
    speedup_estimates,
)
from suffixsvc_driver.targets.llama.context_settings import ContextSettings
from suffixsvc_driver.targets.llama.machine import inspect_machine, physical_cores, usable_cores
from support.tiny_gguf import write_tiny_llama

COSTS = st.lists(st.floats(0.5, 40), min_size=1, max_size=12)


@given(COSTS, st.floats(0, 1), st.one_of(st.none(), st.floats(0, 2)))
def test_the_best_number_of_drafted_tokens(
    costs: list[float], acceptance: float, draft_cost: float | None
) -> None:
    """Against every number of drafted tokens and every width that holds them."""
    curve = CostCurve((0.0, 1.0, *costs))
    [found] = speedup_estimates(curve, [acceptance], draft_cost=draft_cost)

    def best(each: float) -> float:
        choices = [1.0]
        for drafted, width in itertools.product(range(1, len(costs) + 1), range(2, len(costs) + 2)):
            if width > drafted:
                tokens = sum(acceptance**i for i in range(drafted + 1))
                choices.append(tokens / (curve.costs[width] + each * drafted))
        return max(choices)

    assert found.speedup == pytest.approx(best(0.0))
    assert (found.draft_tokens == 0) == (found.speedup == 1.0)
    if draft_cost is None:
        assert found.speedup_with_model is None
    else:
        assert found.speedup_with_model == pytest.approx(best(draft_cost))


@given(COSTS, st.floats(0, 1), st.floats(0, 2), st.floats(0, 2))
def test_where_drafting_pays(costs: list[float], acceptance: float, token_cost: float, ask: float) -> None:
    """Against every number of drafted tokens, every width that holds them, and every percent."""
    curve = CostCurve((0.0, 1.0, *costs))
    choices = [
        (drafted, curve.costs[width])
        for drafted, width in itertools.product(range(1, len(costs) + 1), range(2, len(costs) + 2))
        if width > drafted
    ]

    def best(each: float) -> float:
        return max(sum(each**i for i in range(n + 1)) / (cost + token_cost * n + ask) for n, cost in choices)

    found = best_speedup(curve, acceptance, token_cost=token_cost, query_cost=ask)
    assert found == pytest.approx(max(1.0, best(acceptance)))
    first = next((i / 100 for i in range(101) if best(i / 100) > 1.0 + 1e-9), None)
    paying = break_even_acceptance(curve, token_cost=token_cost, query_cost=ask)
    if first is None:
        assert paying is None or best(paying) == pytest.approx(1.0)
    else:
        assert paying is not None
        assert first - 0.01 <= paying <= first
    saved = max(sum(acceptance**i for i in range(n + 1)) - cost for n, cost in choices)
    seconds = break_even_step_seconds(curve, acceptance, 0.002)
    assert (seconds is None) == (saved <= 0)
    if seconds is not None and seconds < 1e6:
        assert seconds == pytest.approx(0.002 / saved)
        query_cost = 0.002 / seconds
        for factor, more in ((0.99, True), (1.01, False)):
            assert (best_speedup(curve, acceptance, query_cost=factor * query_cost) > 1.0) == more


def machine(root: Path, siblings: list[str], **files: str) -> Path:
    for i, shared in enumerate(siblings):
        folder = root / f"sys/devices/system/cpu/cpu{i}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(shared + "\n")
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_machine_of_half_cores_and_two_nodes(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        ["0,4", "1,5", "2,6", "3,7"] * 2,
        **{
            "sys__fs__cgroup__cpu.max": "250000 100000",
            "sys__kernel__mm__transparent_hugepage__enabled": "always [madvise] never",
        },
    )
    for node in ("node0", "node1"):
        (root / "sys/devices/system/node" / node).mkdir(parents=True)
    assert physical_cores(root) == 4
    assert physical_cores(root, allowed={0, 4, 1}) == 2
    notes = {note.what: note for note in inspect_machine(6, environment={}, root=root)}
    assert "4 physical ones, seen as 8" in notes["cores"].found
    assert "take 4" in notes["threads"].advice
    assert "2.5 cores" in notes["quota"].found
    assert "at most 2 threads" in notes["quota"].advice
    assert "--interleave=all" in notes["numa"].advice
    assert "OMP_NUM_THREADS=1" in notes["openmp"].advice
    assert notes["huge pages"].found.startswith("madvise")


def test_a_machine_where_all_is_well(tmp_path: Path) -> None:
    root = machine(tmp_path, ["0", "1"], **{"sys__fs__cgroup__cpu.max": "max 100000"})
    notes = inspect_machine(2, environment={"OMP_NUM_THREADS": "1"}, root=root)
    assert [note.advice for note in notes] == ["", "", ""]
    assert inspect_machine(1, environment={}, root=root)[1].advice.startswith("2 would be faster")


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    """No /sys: it is taken for what Python knows of it."""
    notes = inspect_machine(1, environment={}, root=tmp_path)
    assert [note.what for note in notes] == ["cores", "threads", "openmp"]


def test_the_verb_on_a_tiny_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUFFIXSVC_HOME", str(tmp_path / "home"))
    model = write_tiny_llama(tmp_path / "m.gguf", context=1024)
    arguments = ["probe", str(model), "--threads", "1", "--max-width", "8", "--rounds", "1"]
    picture = tmp_path / "p.svg"
    assert cli.main([*arguments, "--json", "--plot", str(picture), "--draft", str(model)]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert len(plain["curve"]["costs"]) == 9
    assert [each["acceptance"] for each in plain["prospects"]][-1] == 1.0
    assert picture.read_text().startswith("<svg")
    check_asking(plain)
    kept = list((tmp_path / "home" / "cost").iterdir())
    assert cli.main([*arguments, "--no-rpc"]) == 0
    output = capsys.readouterr().out
    assert "possible speedup" in output
    assert "openmp" in output
    assert "cache, in this process" in output
    assert "as a follower" not in output
    assert "over gRPC" not in output
    assert "with a service" not in output
    assert list((tmp_path / "home" / "cost").iterdir()) == kept, "the curve is kept, not measured again"
    assert cli.main(["probe", str(tmp_path / "none.gguf")]) == 2
    assert "none.gguf" in capsys.readouterr().err


def check_asking(plain: dict[str, Any]) -> None:
    """Both were asked, and every figure follows from what was measured."""
    step, asking = plain["curve"]["seconds_per_step"], plain["asking"]
    curve = CostCurve.from_json(plain["curve"])
    assert asking["calls"] == 60
    assert asking["drafted"] > 1
    assert asking["failures"] == []
    for which in ("engine", "follower", "rpc"):
        taken = asking[f"{which}_us"]
        assert 0 < taken["p50"] <= taken["p99"]
        assert asking[f"{which}_steps"] == pytest.approx(taken["p50"] / 1e6 / step)
    assert asking["hardly_noticed_from_ms"] == pytest.approx(20 * asking["rpc_us"]["p50"] / 1e3)
    worker = asking["draft_worker"]
    assert plain["draft_cost"] == pytest.approx(worker["seconds_per_token"] / step)
    assert 0 < worker["around"]["p50"] < worker["question"]["p50"]
    for each in plain["prospects"]:
        for name, which in (("embedded", "engine"), ("follower", "follower"), ("remote", "rpc")):
            speedup = best_speedup(curve, each["acceptance"], query_cost=asking[f"{which}_steps"])
            assert each[f"speedup_{name}"] == pytest.approx(speedup)
        pays = break_even_step_seconds(curve, each["acceptance"], asking["follower_us"]["p50"] / 1e6)
        assert each["follower_pays_from_ms"] == (None if pays is None else pytest.approx(pays * 1e3))


def test_a_service_that_does_not_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No socket can have so long a path. What was measured before is not lost."""
    monkeypatch.setenv("SUFFIXSVC_HOME", str(tmp_path / "home"))
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    model = write_tiny_llama(tmp_path / "m.gguf", context=1024)
    arguments = ["probe", str(model), "--threads", "1", "--max-width", "2", "--rounds", "1"]
    assert cli.main([*arguments, "--draft", str(model)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    for server in ("service", "draft worker"):
        assert f"Not measured: the {server} did not start" in output
    assert "A token of m.gguf costs" in output, "measured in this process instead"
    assert "cache, in this process" in output


def test_only_cores_that_this_process_may_use_count() -> None:
    assert 1 <= usable_cores() <= physical_cores()
    if hasattr(os, "sched_setaffinity"):
        before = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, {min(before)})
            assert usable_cores() == 1
        finally:
            os.sched_setaffinity(0, before)


def limited(
    root: Path, cores: int, *, halves: int = 1, group: str = "", limits: dict[str, str] | None = None
) -> Path:
    """The files of a machine: cores with so many halves each, a process in a group, quotas of groups."""
    for number in range(cores * halves):
        topology = root / f"sys/devices/system/cpu/cpu{number}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{number % cores}\n")
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(group)
    for name, text in (limits or {}).items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("group", "limits", "cores"),
    [
        ("0::/\n", {}, 8),
        ("0::/\n", {"cpu.max": "max 100000"}, 8),
        ("0::/\n", {"cpu.max": "400000 100000"}, 4),
        ("0::/\n", {"cpu.max": "350000 100000"}, 3),
        ("0::/\n", {"cpu.max": "50000 100000"}, 1),
        ("0::/\n", {"cpu.max": "9900000 100000"}, 8),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, 2),
        ("0::/a/b\n", {"a/b/cpu.max": "600000 100000", "a/cpu.max": "700000 100000"}, 6),
        ("0::/../outside\n", {"cpu.max": "500000 100000"}, 5),
        (
            "3:memory:/m\n2:cpu,cpuacct:/x\n",
            {"cpu/x/cpu.cfs_quota_us": "300000", "cpu/x/cpu.cfs_period_us": "100000"},
            3,
        ),
        ("2:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ("", {"cpu.max": "junk"}, 8),
    ],
)
def test_a_quota_counts_in_whole_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, limits: dict[str, str], cores: int
) -> None:
    """Two containers of four cores each on a machine of eight took eight threads each. Threads of llama.cpp
    spin while they wait for each other, also for those that the quota has stopped."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    root = limited(tmp_path, 8, halves=2, group=group, limits=limits)
    assert physical_cores(root) == 8
    assert usable_cores(root) == cores


def test_a_target_computes_on_the_cores_that_it_may_use() -> None:
    """The README's example names no number of threads, and computed on one of 96 cores."""
    assert ContextSettings().threads == usable_cores()
    if hasattr(os, "sched_setaffinity"):
        before = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, {max(before)})
            assert ContextSettings().threads == 1
        finally:
            os.sched_setaffinity(0, before)
    assert ContextSettings(threads=1).threads == 1

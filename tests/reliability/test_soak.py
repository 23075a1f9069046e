"""Row "soak": two tenants and their followers open, step, close, discard and delete for hours.

Limits bound the data, so that it is as large after the warm-up as at the end: what grows then is a leak.
"""

from __future__ import annotations

import contextlib
import csv
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from suffixsvc.access.tokens import TokenFile
from suffixsvc.plots import Chart, Series
from suffixsvc.plots.files import svg_file
from suffixsvc.transport.identity import ClientIdentity
from suffixsvc_bench.rpc.processes import echo_process
from suffixsvc_bench.rpc.workload import Workload
from suffixsvc_client import ClientConfig, SuffixClient
from support.measured_servers import measured_server
from support.process_usage import UsageSampler, trend

TENANTS = ("alpha", "beta")
PROGRAM = Path(__file__).with_name("soak_program.py")
Figure = Callable[[str, object, str], None]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Form:
    """Sizes of a run. ``growth`` is the share of its memory that a process may gain after the warm-up."""

    seconds: float
    warm_seconds: float
    sample_seconds: float
    max_bytes: int
    idle_seconds: float
    growth: float
    p99_ratio: float


SHORT = Form(65.0, 25.0, 0.5, 2 << 20, 20.0, 0.10, 2.0)
FULL = Form(7200.0, 1200.0, 10.0, 48 << 20, 60.0, 0.05, 1.5)
#: tokens of an output that fills a namespace
FILL_TOKENS = 240
#: sessions of a tenant's process and of its follower's: 200 in all
SESSIONS = {False: 90, True: 10}


@contextlib.contextmanager
def clients(target: str, tokens: dict[str, str], echo: str, form: Form, folder: Path) -> Iterator[Any]:
    """The processes of tenants and followers, by name; they end by themselves."""
    running: dict[str, tuple[subprocess.Popen[str], Path]] = {}
    try:
        for number, tenant in enumerate(TENANTS):
            for follow in (False, True):
                result = folder / f"{tenant}-{follow}.npz"
                order = {
                    "target": target,
                    "token": tokens[tenant],
                    "namespace": f"{tenant}/agents",
                    "sessions": SESSIONS[follow],
                    "seconds": form.seconds,
                    "seed": 2 * number + follow,
                    "follow": follow,
                    "echo": echo,
                    "result": str(result),
                }
                line = [sys.executable, str(PROGRAM), json.dumps(order)]
                process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
                running[f"{'follower' if follow else 'tenant'} {tenant}"] = process, result
        for process, _ in running.values():
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "begun"
        yield running
    finally:
        for process, _ in running.values():
            process.kill()
            process.wait()


@contextlib.contextmanager
def filled(target: str, tokens: dict[str, str], max_bytes: int) -> Iterator[None]:
    """Write as much as the limits of the namespaces permit, and a half more, which evicts."""
    workload = Workload(99)
    for tenant in TENANTS:
        config = ClientConfig(identity=ClientIdentity(token=tokens[tenant]))
        with SuffixClient(target, config) as client:
            namespace = client.namespace(f"{tenant}/agents")
            written = 0
            while written < 1.5 * max_bytes:
                namespace.add_outputs(workload.outputs(namespace.path, 50, FILL_TOKENS))
                written += 50 * FILL_TOKENS * 32  # bytes of the index and the log by token, at least
            stats = namespace.stats()
            assert 0.8 <= stats.held_bytes / max_bytes <= 1.0, "the limit is reached"
    yield


def test_soak(tmp_path: Path, full: bool, figure: Figure, out: Path) -> None:
    form = FULL if full else SHORT
    file = TokenFile(tmp_path / "tokens.toml")
    tokens = {tenant: file.create(tenant) for tenant in TENANTS}
    policies = tmp_path / "policies.toml"
    policies.write_text(f"[default]\nmax_bytes = {form.max_bytes}\n[principals]\n")
    options = ("--data", str(tmp_path / "data"), "--tokens", str(file.path), "--policies", str(policies))
    limits = ("--session-idle-seconds", str(form.idle_seconds), "--max-streams", "32")
    with (
        measured_server(tmp_path, "serve", *options, *limits) as server,
        echo_process(tmp_path) as echo,
        filled(server.address, tokens, form.max_bytes),
        clients(server.address, tokens, echo["tcp"], form, tmp_path) as running,
    ):
        pids = {"service": server.pid, **{name: process.pid for name, (process, _) in running.items()}}
        with UsageSampler(pids, form.sample_seconds) as sampler:
            told = {name: process.communicate()[0] for name, (process, _) in running.items()}
        assert [process.returncode for process, _ in running.values()] == [0] * 4
        config = ClientConfig(identity=ClientIdentity(token=tokens["alpha"]))
        with SuffixClient(server.address, config) as client:
            # sessions that were retracted together leave the index less compact until the next write
            client.namespace("alpha/agents").add_outputs(Workload(98).outputs("alpha/agents", 1, FILL_TOKENS))
            stats = client.namespace("alpha/agents").stats()
        assert server.child.running
        assert server.defects() == []
    counts = {name: json.loads(text) for name, text in told.items()}
    times = {name: np.load(path)["times"] for name, (_, path) in running.items()}
    samples = _measured(sampler, form)
    _write(out, samples, times)
    total: dict[str, int] = {}
    for each in counts.values():
        for name, value in each.items():
            total[name] = total.get(name, 0) + (sum(value.values()) if name == "empty" else value)
    for name in ("opened", "closed", "discarded", "abandoned", "deleted", "steps"):
        figure(name, total.get(name, 0), "")
    figure("steps without an answer", total["empty"], "0")
    figure("held bytes of a namespace / its limit", f"{stats.held_bytes / form.max_bytes:.2f}", "0.8 .. 1")
    assert total["empty"] == 0, [each["empty"] for each in counts.values()]
    failed = [
        *(each for name in samples for each in _memory(name, samples[name], form, figure)),
        *_flat("service", samples["service"], figure),
        *_latency({name: each for name, each in times.items() if "tenant" in name}, form, figure),
    ]
    if not 0.8 <= stats.held_bytes / form.max_bytes <= 1.0:
        failed.append("the data is not at its plateau")
    assert not failed, failed


def _measured(sampler: UsageSampler, form: Form) -> dict[str, Floats]:
    """By process: rows of seconds, anonymous bytes, resident bytes, descriptors, threads after the warm-up.

    The samples of the last seconds, in which the clients end, are left out."""
    found = {}
    for name, rows in sampler.samples.items():
        table = np.array(
            [
                (at, usage.anonymous_bytes, usage.resident_bytes, usage.descriptors, usage.threads)
                for at, usage in rows
            ],
            float,
        )
        # the clients begin before the sampler, and run for form.seconds
        found[name] = table[(table[:, 0] > form.warm_seconds) & (table[:, 0] < form.seconds - 1.0)]
    return found


def _memory(name: str, table: Floats, form: Form, figure: Figure) -> Iterator[str]:
    """The line through the anonymous memory; what it proves to grow must be little."""
    seconds = form.seconds - form.warm_seconds
    line = trend(table[:, 0], table[:, 1])
    resident = trend(table[:, 0], table[:, 2])
    figure(
        f"{name}: memory slope, of {line.mean / 2**20:.0f} MiB",
        f"{60 * line.slope / 1024:+.0f} +- {60 * line.half_width / 1024:.0f} KiB/min",
        "",
    )
    figure(f"{name}: with mapped files", f"{60 * resident.slope / 1024:+.0f} KiB/min", "")
    grown = line.least_growth(seconds)
    figure(f"{name}: growth proved after the warm-up", f"{grown:+.1%}", f"<= {form.growth:.0%}")
    if grown > form.growth:
        yield f"{name} grows by {grown:.1%}"


def _flat(name: str, table: Floats, figure: Figure) -> Iterator[str]:
    """Descriptors and threads: the most in the last third, against the first."""
    third = len(table) // 3
    for what, column, spare in (("descriptors", 3, 8), ("threads", 4, 4)):
        first, last = table[:third, column].max(), table[-third:, column].max()
        figure(f"{name}: {what}", f"{first:.0f} -> {last:.0f}", f"<= {spare} more")
        if last > first + spare:
            yield f"{what} grow"


def _latency(times: dict[str, Floats], form: Form, figure: Figure) -> Iterator[str]:
    """p99 of steps in the last third after the warm-up, against the first; the echo shows the machine's."""
    third = (form.seconds - form.warm_seconds) / 3
    rows = np.concatenate(list(times.values()))
    parts = [
        rows[(rows[:, 0] >= start) & (rows[:, 0] < start + third)]
        for start in (form.warm_seconds, form.seconds - third)
    ]
    ratios = {}
    for what, column in (("step", 1), ("echo", 2)):
        first, last = (1e3 * float(np.percentile(part[:, column], 99)) for part in parts)
        ratios[what] = last / first
        figure(f"{what}: p99 in the first and last third", f"{first:.2f} ms, {last:.2f} ms", "")
    must = form.p99_ratio * max(1.0, ratios["echo"])
    figure("step: ratio of p99, last third to first", f"{ratios['step']:.2f}", f"<= {must:.2f}")
    if ratios["step"] > must:
        yield "p99 rises"


def _write(out: Path, samples: dict[str, Floats], times: dict[str, Floats]) -> None:
    with (out / "soak.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("process", "seconds", "anonymous_bytes", "resident_bytes", "descriptors", "threads"))
        for name, table in samples.items():
            rows.writerows((name, *map(int, row)) for row in table)
    memory = [
        Series(name, [(row[0] / 60, row[1] / 2**20) for row in table], colour)
        for colour, (name, table) in enumerate(samples.items())
    ]
    latency = [
        Series(f"{name}, {what}", _by_minute(table, column), 2 * number + column)
        for number, (name, table) in enumerate(times.items())
        if "tenant" in name
        for what, column in (("step", 1), ("echo", 2))
    ]
    for file_name, title, label, series in (
        ("soak-memory", "Memory while sessions come and go", "MiB without mapped files", memory),
        ("soak-latency", "99th percentile of steps, and of a bare echo", "milliseconds", latency),
    ):
        text = svg_file(Chart(title, title, "minutes", label, series))
        (out / f"{file_name}.svg").write_text(text)


def _by_minute(table: Floats, column: int) -> list[tuple[float, float]]:
    minutes = (table[:, 0] // 60).astype(int)
    return [
        (float(minute), 1e3 * float(np.percentile(table[minutes == minute, column], 99)))
        for minute in np.unique(minutes)
    ]

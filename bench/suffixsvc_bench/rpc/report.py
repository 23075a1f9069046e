"""Results of the benchmark of the wire as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffixsvc_bench.report.tables import Grid

_HEADINGS = ("us per call", "step p50", "step p90", "step p99", "echo p50", "echo p90", "echo p99")
_DERIVED = ("ratio", "beyond", "engine", "steps/s")


def rpc_grid(report: Mapping[str, Any]) -> Grid:
    """The timings of a run, one row per configuration."""
    grid = Grid([*_HEADINGS, *_DERIVED])
    for t in report["timings"]:
        times = [t[subject][p] for subject in ("step", "echo") for p in ("p50", "p90", "p99")]
        grid.rows.append(
            [
                f"{t['transport']} {t['kind']} x{t['batch']} {t['mode']}",
                *(f"{time:.0f}" for time in times),
                f"{t['ratio']:.2f}",
                f"{t['beyond_us_per_session']:.1f}",
                f"{t['engine']['p50'] / t['batch']:.1f}",
                f"{t['sessions_per_second']:.0f}",
            ]
        )
    return grid


def rpc_parts(report: Mapping[str, Any]) -> list[Grid | str]:
    """The table, and one sentence on the number of calls and the drafts."""
    timings, options = report["timings"], report["options"]
    drafted = sum(t["drafted"] for t in timings) / len(timings)
    line = f"Percentiles of {options['calls']} calls; {drafted:.1f} tokens drafted per step; "
    parts: list[Grid | str] = [rpc_grid(report), f"{line}seed {options['seed']}."]
    if "identity_steps" in report:
        parts.append(identity_grid(report))
    if "neighbour_steps" in report:
        parts.append(neighbour_grid(report))
    if "follower_steps" in report:
        parts += [follower_grid(report), figures_grid(report["follower_figures"])]
    return parts


def identity_grid(report: Mapping[str, Any]) -> Grid:
    """Steps over TLS with a token beside steps without, and the same of a bare echo."""
    subjects = [f"{s} {p}" for s in ("tls", "plain", "control") for p in ("p50", "p99")]
    grid = Grid(["us per step over TCP", *subjects, "ratio", "(control)", "(echo)"])
    for row in report["identity_steps"]:
        times = [row[s][p] for s in ("tls", "plain", "control") for p in ("p50", "p99")]
        ratios = [row[key] for key in ("ratio", "control_ratio", "echo_ratio")]
        name = f"TLS and token, {row['mode']}"
        grid.rows.append([name, *(f"{time:.0f}" for time in times), *(f"{ratio:.2f}" for ratio in ratios)])
    return grid


def neighbour_grid(report: Mapping[str, Any]) -> Grid:
    """Steps beside a noisy neighbour."""
    subjects = [f"{s} {p}" for s in ("idle", "noisy", "control") for p in ("p50", "p99")]
    grid = Grid(["us per step, neighbour", *subjects, "p99 ratio", "(control)", "added", "within"])
    for row in report["neighbour_steps"]:
        times = [row[s][p] for s in ("idle", "noisy", "control") for p in ("p50", "p99")]
        grid.rows.append(
            [
                row["kind"],
                *(f"{time:.0f}" for time in times),
                f"{row['p99_ratio']:.2f}",
                f"{row['p99_control']:.2f}",
                f"{row['p99_added_ms']:.1f} ms",
                "yes" if row["within"] else "no",
            ]
        )
    return grid


def follower_grid(report: Mapping[str, Any]) -> Grid:
    """Steps of a follower beside the embedded engine's."""
    subjects = [f"{s} {p}" for s in ("follower", "engine", "control") for p in ("p50", "p99")]
    grid = Grid(["us per step", *subjects, "p50 ratio", "(control)", "p99 ratio", "(control)"])
    for row in report["follower_steps"]:
        times = [row[s][p] for s in ("follower", "engine", "control") for p in ("p50", "p99")]
        ratios = [row[key] for key in ("p50_ratio", "p50_control", "p99_ratio", "p99_control")]
        name = f"{row['mode']}, {row['followed_per_second']} followed/s"
        grid.rows.append([name, *(f"{time:.0f}" for time in times), *(f"{ratio:.2f}" for ratio in ratios)])
    return grid


def figures_grid(figures: Mapping[str, Any]) -> Grid:
    """The other figures of followers."""
    grid = Grid(["followers", ""])
    for name in ("open_hot", "open_sealed"):
        if (opened := figures[name]) is not None:
            size = f"{opened['tokens'] / 1e6:.0f} M tokens, {opened['hot_tokens'] / 1e6:.1f} M of them hot"
            grid.rows.append([f"open to first draft, {size}", f"{opened['seconds']:.2f} s"])
            mib = opened["second_private_bytes"] / 2**20
            grid.rows.append(["    private memory of the second follower of a host", f"{mib:.0f} MiB"])
    delay = figures["written_to_drafted_ms"]
    grid.rows.append(["written in a process, drafted in another, p50", f"{delay['p50']:.1f} ms"])
    grid.rows.append(["    p99", f"{delay['p99']:.1f} ms"])
    share = figures["fan_out"]["fan_out"]
    grid.rows.append(["fan-out of 800 tokens/s to 8 followers, of a core", f"{100 * share:.0f} %"])
    ratio = figures["flat_out"]["ratio"]
    grid.rows.append(["two followers / two threads of an engine, flat out", f"{ratio:.2f}"])
    return grid

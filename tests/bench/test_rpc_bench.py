"""The benchmark of the wire on real servers: configurations, output, table widths. Times are not asserted."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from suffixsvc.errors import InvalidConfigError
from suffixsvc_bench.report.tables import Grid, print_grid
from suffixsvc_bench.rpc.echo import echo_reply, echo_request
from suffixsvc_bench.rpc.follower_figures import (
    fan_out_share,
    flat_out,
    opening_seconds,
    service_with,
    written_to_drafted,
)
from suffixsvc_bench.rpc.follower_steps import follower_steps
from suffixsvc_bench.rpc.identity_steps import identity_steps
from suffixsvc_bench.rpc.neighbour_steps import neighbour_steps
from suffixsvc_bench.rpc.neighbours import KINDS, Neighbour
from suffixsvc_bench.rpc.options import RpcOptions
from suffixsvc_bench.rpc.report import (
    figures_grid,
    follower_grid,
    identity_grid,
    neighbour_grid,
    rpc_grid,
)
from suffixsvc_bench.rpc.run import run_rpc_bench
from suffixsvc_bench.rpc.subjects import NAMESPACE
from suffixsvc_bench.rpc.timing import portions
from suffixsvc_bench.rpc.workload import Workload
from suffixsvc_cli.bench.rpc import rpc
from suffixsvc_client import SuffixClient
from support.serving import eventually

SMALL = RpcOptions(
    batches=(1, 3),
    calls=12,
    rounds=2,
    pause_ms=0.1,
    outputs=20,
    followers=False,
    identities=False,
    neighbours=False,
)


def test_every_configuration_is_measured() -> None:
    seen: list[tuple[str, float]] = []
    report = run_rpc_bench(SMALL, lambda what, share: seen.append((what, share)))
    assert json.loads(json.dumps(report)) == report | {"options": json.loads(json.dumps(report["options"]))}
    names = ("transport", "kind", "batch", "mode")
    measured = [tuple(timing[name] for name in names) for timing in report["timings"]]
    assert measured == SMALL.configurations()
    assert len(measured) == len(set(measured)) == 2 * (2 + 1) * 2  # a unary call has one session
    assert list(dict.fromkeys(what for what, _ in seen)) == [
        "{}, {}, batch {}, {}".format(*m) for m in measured
    ]
    shares = [share for _, share in seen]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    for timing in report["timings"]:
        assert timing["calls"] == 12
        for found in (timing["step"], timing["echo"], timing["engine"]):
            assert 0 < found["p50"] <= found["p90"] <= found["p99"]
        assert timing["drafted"] > 0  # the answers contain drafts
        assert timing["reply_bytes"] > 36 * timing["batch"]  # a session id at least
    assert report["options"]["seed"] == 0
    assert {"ratio", "beyond_us_per_session", "step", "echo"} <= set(report["timings"][0])


def test_followers_are_measured() -> None:
    steps = follower_steps(lambda _: None, calls=4, seed=0, loads=((1000, "hot"),))
    assert json.loads(json.dumps(steps)) == steps
    assert (steps[0]["mode"], steps[0]["followed_per_second"], steps[0]["calls"]) == ("hot", 1000, 4)
    with service_with(20_000) as service:
        figures: dict[str, Any] = {
            "open_hot": opening_seconds(service, 1),
            "open_sealed": None,
            "written_to_drafted_ms": written_to_drafted(service, 3),
            "fan_out": fan_out_share(service, 0.1, 1),
            "flat_out": flat_out(service, 0.1, 1),
        }
    assert figures["open_hot"]["tokens"] >= 20_000
    assert json.loads(json.dumps(figures)) == figures
    for name, field in (("open_hot", "seconds"), ("written_to_drafted_ms", "p50"), ("flat_out", "ratio")):
        assert figures[name][field] > 0
    grids = follower_grid({"follower_steps": steps}), figures_grid(figures)
    assert [len(grid.rows) for grid in grids] == [1, 6]
    assert all(len(row) == len(grid.headings) for grid in grids for row in grid.rows)


def test_steps_with_an_identity_are_measured() -> None:
    steps = identity_steps(lambda _: None, calls=4, pause_ms=0.1, seed=0)
    assert json.loads(json.dumps(steps)) == steps
    assert [(row["mode"], row["calls"]) for row in steps] == [("hot", 4), ("cold", 4)]
    assert all(row[name] > 0 for row in steps for name in ("ratio", "control_ratio", "echo_ratio"))
    grid = identity_grid({"identity_steps": steps})
    assert all(len(row) == len(grid.headings) for row in grid.rows)


def test_steps_beside_a_neighbour_are_measured() -> None:
    kinds = ("prompts", "idle")
    steps = neighbour_steps(lambda _: None, calls=6, seed=0, kinds=kinds)
    assert json.loads(json.dumps(steps)) == steps
    assert [(row["kind"], row["calls"]) for row in steps] == [(kind, 6) for kind in kinds]
    for row in steps:
        assert not [name for name in row["done"] if name.startswith("refused")]
        for phase in ("idle", "noisy", "control"):
            assert 0 < row[phase]["p50"] <= row[phase]["p99"]
        added = (row["noisy"]["p99"] - row["idle"]["p99"]) / 1e3
        assert row["within"] == (row["p99_ratio"] <= 2 or added <= 5)
    grid = neighbour_grid({"neighbour_steps": steps})
    assert [len(row) for row in grid.rows] == [len(grid.headings)] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_do_what_they_are_named_after(kind: str) -> None:
    with service_with(0) as (address, _), Neighbour(kind, address, "noise") as neighbour:
        neighbour.begin()
        with SuffixClient(address) as client:
            client.namespace(NAMESPACE).open_session([1])
            eventually(lambda: client.stats().sessions > 1 or _written(client), "it works")
        done = neighbour.end()
        assert not [name for name in done if name.startswith("refused")]
        with SuffixClient(address) as client:
            assert client.stats().sessions == 1, "it gives back what it held"
            assert not _written(client)


def _written(client: SuffixClient) -> bool:
    return any(each.path == "noise" and each.outputs for each in client.namespace_summaries())


def test_the_command_prints_json() -> None:
    app = typer.Typer()
    app.command()(rpc)
    chosen = [
        "--transport",
        "unix",
        "--kind",
        "stream",
        "--batch",
        "2",
        "--mode",
        "hot",
        "--calls",
        "4",
        "--no-followers",
        "--no-identities",
        "--no-neighbours",
        "--json",
    ]
    result = CliRunner().invoke(app, chosen)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [t["batch"] for t in report["timings"]] == [2]
    assert report["provenance"]["suffixsvc"]


def test_there_are_at_most_as_many_rounds_as_calls() -> None:
    assert list(portions(5, 8)) == [1] * 5
    assert list(portions(9, 4)) == [2, 2, 2, 3]


def test_the_table_is_split_at_80_columns() -> None:
    """Its headings were broken into single letters there."""
    us = {"p50": 1234.0, "p90": 12345.0, "p99": 23456.0}
    timing = {"transport": "unix", "kind": "stream", "batch": 64, "mode": "cold", "ratio": 12.34}
    timing |= {"beyond_us_per_session": 123.4, "sessions_per_second": 123456.0}
    grid = rpc_grid({"timings": [timing | {"step": us, "echo": us, "engine": us}]})
    console = Console(width=80, record=True, file=io.StringIO())
    print_grid(console, grid)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    words = {word for line in lines for word in re.findall(r"[^\s│┃]+", line)}
    assert {word for heading in grid.headings for word in heading.split()} <= words
    assert set(grid.rows[0][1:]) <= words
    assert sum("unix stream x64 cold" in line for line in lines) == 2, (
        "two tables, each with the first column"
    )


def test_a_table_that_fits_is_not_split() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    print_grid(console, Grid(["what it is", "some figures"], [["a", "1"]], [["mean", ""]]))
    assert console.export_text().count("what it is") == 1


def test_the_echo_replies_with_the_requested_size() -> None:
    assert len(echo_reply(echo_request(100, 250))) == 250
    assert len(echo_request(100, 250)) == 100


def test_texts_are_reproducible_and_repeat_themselves() -> None:
    first, second = Workload(3).text(2000), Workload(3).text(2000)
    assert np.array_equal(first, second)
    pairs = set(zip(first[:-1].tolist(), first[1:].tolist(), strict=True))
    assert len(pairs) < 1500  # random tokens would give 1999


@pytest.mark.parametrize(
    "wrong",
    [
        {"transports": ("pigeon",)},
        {"kinds": ()},
        {"modes": ("warm",)},
        {"batches": (0,)},
        {"batches": (1, 4097)},
        {"rounds": 0},
        {"pause_ms": -1.0},
    ],
)
def test_invalid_options(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidConfigError):
        replace(SMALL, **wrong)  # type: ignore[arg-type] # on purpose

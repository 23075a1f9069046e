"""The benchmark of the wire: it measures what it says, on real servers. No figure is judged."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import typer
from suffixsvc_bench.rpc_bench import RpcOptions, run_rpc_bench
from suffixsvc_bench.rpc_bench.echo import _answer, ask_for
from suffixsvc_bench.rpc_bench.workload import Workload
from typer.testing import CliRunner

from suffixsvc.cli.bench_rpc import rpc
from suffixsvc.errors import InvalidConfigError

SMALL = RpcOptions(batches=(1, 3), calls=12, rounds=2, pause_ms=0.1, outputs=20)


def test_every_configuration_is_measured() -> None:
    seen: list[tuple[str, float]] = []
    report = run_rpc_bench(SMALL, lambda what, share: seen.append((what, share)))
    measured = [(t.transport, t.kind, t.batch, t.mode) for t in report.timings]
    assert measured == SMALL.configurations()
    assert len(measured) == len(set(measured)) == (2 * (2 + 1) + 2) * 2  # direct: unix alone
    assert list(dict.fromkeys(what for what, _ in seen)) == [
        "{}, {}, batch {}, {}".format(*m) for m in measured
    ]
    shares = [share for _, share in seen]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    for timing in report.timings:
        assert timing.calls == 12
        for found in (timing.step, timing.echo, timing.engine):
            assert 0 < found.p50 <= found.p90 <= found.p99
        assert timing.drafted > 0  # the steps were answered with drafts, not with nothing
        assert timing.reply_bytes > 36 * timing.batch  # a session id at least
    written = json.loads(json.dumps(report.as_dict()))
    assert written["options"]["seed"] == 0
    assert {"ratio", "beyond_us_per_session", "step", "echo"} <= set(written["timings"][0])


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
        "--json",
    ]
    result = CliRunner().invoke(app, chosen)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [t["batch"] for t in report["timings"]] == [2]
    assert report["provenance"]["suffixsvc"]


def test_the_echo_answers_with_the_size_it_is_asked_for() -> None:
    assert len(_answer(ask_for(100, 250))) == 250
    assert len(ask_for(100, 250)) == 100


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
        {"rounds": 13},
        {"pause_ms": -1.0},
    ],
)
def test_options_that_make_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidConfigError):
        replace(SMALL, **wrong)  # type: ignore[arg-type] # on purpose

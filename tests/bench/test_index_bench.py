"""The index bench: its texts are what they claim, its figures are there and consistent. No speeds."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from suffixsvc.errors import InvalidInputError, StoreError
from suffixsvc_bench.index.charts import index_charts
from suffixsvc_bench.index.kinds import KINDS
from suffixsvc_bench.index.options import IndexBenchOptions
from suffixsvc_bench.index.parts.peer import ArcticTree
from suffixsvc_bench.index.parts.restart import measure_restarts
from suffixsvc_bench.index.report import write_index_report
from suffixsvc_bench.index.run import run_index_bench
from suffixsvc_bench.index.tables import index_parts
from suffixsvc_bench.index.texts import VOCABULARY, from_log, stream
from suffixsvc_bench.methods.arctic import find_python
from suffixsvc_bench.methods.peer_process import PeerFailedError
from suffixsvc_bench.report.output import print_results
from suffixsvc_cli.bench.index import bench_index

LOG = Path(__file__).parents[1] / "data" / "recorded_demo.jsonl.gz"
SMALL = IndexBenchOptions(
    sizes=(3_000, 9_000),
    output_tokens=100,
    step_outputs=2,
    removed_outputs=5,
    prompt_tokens=500,
    peer=False,
    restart=False,
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_is_the_same_for_the_same_seed_only(kind: str) -> None:
    first, again, other = (list(itertools.islice(stream(kind, 700, seed), 100)) for seed in (3, 3, 4))
    assert all(o.dtype == np.int32 and o.shape == (700,) for o in first)
    assert all(o.min() >= 0 and o.max() < VOCABULARY for o in first)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_kinds_repeat_themselves_as_their_names_say() -> None:
    """Share of 8-grams that were written before."""
    seen_before = {}
    for kind in KINDS:
        tokens = np.concatenate(list(itertools.islice(stream(kind, 1_000, 1), 100)))
        grams = np.lib.stride_tricks.sliding_window_view(tokens, 8)
        seen_before[kind] = 1 - len(np.unique(grams, axis=0)) / len(grams)
    assert seen_before["random"] == 0
    assert 0.3 < seen_before["realistic"] < 0.7
    assert seen_before["repetitive"] > 0.7


def test_a_log_comes_again_under_other_ids_with_its_repetition_kept() -> None:
    outputs = from_log(LOG, None, seed=1)
    first_round = []
    for output in outputs:
        if first_round and np.array_equal(output, first_round[0]):
            pytest.fail("a round came again unpermuted")
        first_round.append(output)
        if len(first_round) == 54:
            break
    second_round = list(itertools.islice(outputs, 54))
    there: dict[int, int] = {}
    back: dict[int, int] = {}
    for a, b in zip(first_round, second_round, strict=True):
        assert len(a) == len(b)
        for x, y in zip(a.tolist(), b.tolist(), strict=True):
            assert there.setdefault(x, y) == y
            assert back.setdefault(y, x) == x


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a run that also fills and opens folders."""
    folder = tmp_path_factory.mktemp("folders")
    shares: list[float] = []
    found = run_index_bench(
        dataclasses.replace(SMALL, restart=True, folder=folder), lambda _, share: shares.append(share)
    )
    assert shares == sorted(shares)
    assert json.loads(json.dumps(found)) == found
    assert not list(folder.iterdir())
    return found


def test_all_figures_are_there_and_agree_with_each_other(results: dict[str, Any]) -> None:
    for text in results["texts"].values():
        assert {"add an output", "discard the session", "settle them"} <= {at["job"] for at in text["holds"]}
        assert {"index", "segment", "learner"} <= {at["lock"] for at in text["holds"]}
        assert all(at["work"] <= 2_048 + 128 + 32_768 for at in text["holds"])
    assert set(results["texts"]) == set(KINDS)
    for text in results["texts"].values():
        assert [at["tokens"] for at in text["sizes"]] == [3_000, 9_000]
        for at in text["sizes"]:
            assert at["ingest_us_per_token"] > 0
            assert at["bytes_per_token"] > 0
            assert at["open_ms"] > 0
            assert at["remove_ms_per_output"] > 0
            for steps in at["steps"].values():
                for what in ("append_us", "draft_us", "step_us"):
                    assert 0 < steps[what]["p50"] <= steps[what]["p90"] <= steps[what]["p99"]
        assert [p["tokens"] for p in text["growth"]] == sorted({p["tokens"] for p in text["growth"]})
        removal = text["removal"]
        assert [p["tokens"] for p in removal] == [3_000 - 300 * i for i in range(11)]
        assert removal[-1]["of_empty"] <= 1.1
    known = results["texts"]["realistic"]["sizes"][0]["steps"]
    assert known["known text"]["drafted_per_step"] > known["new text"]["drafted_per_step"]


def test_invalid_sizes_and_kinds_are_refused() -> None:
    for wrong in ({"sizes": ()}, {"sizes": (2_000_000, 1_000_000)}, {"sizes": (10,)}, {"kinds": ("odd",)}):
        with pytest.raises(InvalidInputError):
            IndexBenchOptions(**wrong)  # type: ignore[arg-type]  # what callers may send


def test_the_verb_prints_a_table_or_json_and_refuses_invalid_sizes() -> None:
    app = typer.Typer()
    app.command()(bench_index)
    few = ["--sizes", "3k", "--output-tokens", "20", "--kind", "realistic", "--no-peer", "--seed", "7"]
    few += ["--no-restart"]  # the table of these folders is checked below
    table = CliRunner().invoke(app, few)
    assert table.exit_code == 0, table.output
    assert "ingest, us per token" in table.stdout
    assert "seed 7" in table.stdout
    data = json.loads(CliRunner().invoke(app, [*few, "--json"]).stdout)
    assert data["options"]["seed"] == 7
    assert data["provenance"]["commit"] is not None
    assert isinstance(CliRunner().invoke(app, ["--sizes", "12Q"]).exception, InvalidInputError)


def test_an_unusable_peer_is_named(tmp_path: Path) -> None:
    odd = tmp_path / "python"
    odd.write_text("#!/bin/sh\necho no answer\n")
    odd.chmod(0o755)
    with ArcticTree(str(odd), 24) as tree, pytest.raises(PeerFailedError):
        tree.extend([np.arange(3, dtype=np.int32)])
    with pytest.raises(PeerFailedError):
        ArcticTree(str(tmp_path / "nothing"), 24)


def test_the_peer_does_the_same_work_where_it_is_installed() -> None:
    python = find_python()
    if python is None:
        pytest.skip("the peer is not installed; make peers builds it")
    text = stream("repetitive", 100, 1)
    with ArcticTree(python, 24) as tree:
        assert tree.extend(list(itertools.islice(text, 20)))["seconds"] > 0
        steps = tree.steps(list(itertools.islice(text, 2)), 16)
        assert len(steps["append"]) == len(steps["draft"]) == 200
        assert tree.remove(20)["seconds"] > 0


def test_folders_are_filled_and_opened_by_others(
    results: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found = results["restart"]
    small, large = found["sizes"]
    assert (small["tokens"], large["tokens"]) == (3_000, 9_000)
    for at in found["sizes"]:
        assert 0 < at["open_s"] <= at["first_draft_s"]
        assert at["segments"] == 1
        if Path("/proc/self/status").exists():  # of the part's own process: less than ours with the tests
            assert 0 < at["peak_resident_bytes"] < 1 << 30
        assert at["folder_bytes_per_token"] > at["segment_bytes_per_token"] > 4
        assert len(at["rounds"]) == 3
        assert at["append_draft_us_new"] > 0
    assert small["append_draft_of_smallest"] == {"new": 1.0, "known": 1.0}
    ratio = large["append_draft_us_known"] / small["append_draft_us_known"]
    assert large["append_draft_of_smallest"]["known"] == pytest.approx(ratio)
    print_results(results, index_parts, as_json=False, seed=1)
    assert "a folder, realistic" in capsys.readouterr().out


def test_a_part_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="fill"):
        measure_restarts((10_000,), "no such kind", 100, 1, tmp_path, lambda *_: None)
    assert not list(tmp_path.iterdir())


def test_growth_is_drawn_and_the_page_needs_nothing_else(results: dict[str, Any], tmp_path: Path) -> None:
    drawn = {chart.title: chart for chart in index_charts(results)}
    memory = drawn["Memory of the hot index"]
    assert [series.name for series in memory.series] == list(KINDS)
    grown = results["texts"]["random"]["growth"]
    assert list(memory.series[0].points) == [(p["tokens"], p["bytes"] / p["tokens"]) for p in grown]
    assert len(drawn["Restart"].series[0].points) == 2
    seconds = sum(
        us * (b["tokens"] - a["tokens"]) / 1e6
        for (_, us), a, b in zip(
            drawn["Adding a token"].series[0].points, [{"tokens": 0}, *grown], grown, strict=False
        )
    )
    assert seconds == pytest.approx(grown[-1]["seconds"])
    page = tmp_path / "index.html"
    write_index_report(page, results)
    text = page.read_text(encoding="utf-8")
    assert text.count("<figure>") == len(drawn) >= 5
    assert "src=" not in text
    assert "href=" not in text
    assert not re.findall(r"@[A-Z_]+@", text)  # no mark was left


def test_invalid_inputs_are_refused_before_the_first_measurement(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InvalidInputError, match="must have a call with a response"):
        run_index_bench(
            dataclasses.replace(SMALL, log=tmp_path / "empty.jsonl"), lambda what, share: said.append(what)
        )
    assert said == []
    app = typer.Typer()
    app.command()(bench_index)
    for folder in (tmp_path / "empty.jsonl", tmp_path / "nothing"):
        error = CliRunner().invoke(app, ["--sizes", "50k", "--folder", str(folder)]).exception
        assert isinstance(error, InvalidInputError)
        assert "--folder must be a writable folder" in str(error)

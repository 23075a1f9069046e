"""The benchmark of building caches measures what it says; nothing here is about speed."""

from __future__ import annotations

import dataclasses
import json
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from suffixsvc.errors import InvalidInputError, StoreError
from suffixsvc_bench.build.options import SECTIONS, BuildBenchOptions
from suffixsvc_bench.build.run import run_build_bench
from suffixsvc_bench.build.tables import build_grids
from suffixsvc_bench.build.texts import source_text, synthetic_outputs, write_ids
from suffixsvc_bench.measured_process import run_part, run_program
from suffixsvc_bench.page.publish import publish
from suffixsvc_caches.logs import ReadOptions, ReadReport, find_logs, read_calls
from suffixsvc_cli.bench.build import bench_build
from support.tiny_gguf import write_tiny_llama

pytest.importorskip("pyarrow")

LOG = Path(__file__).parents[1] / "data" / "recorded_demo.jsonl.gz"
SMALL = BuildBenchOptions(
    sections=("tokens", "memory", "export", "pruning"),
    tokens=20_000,
    memory_tokens=50_000,
    memories=(256 << 20,),
    records=10_000,
    logs=(LOG,),
)


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    shares: list[float] = []
    found = run_build_bench(SMALL, lambda _, share: shares.append(share))
    assert shares == sorted(shares)
    assert json.loads(json.dumps(found)) == found
    return found


def test_every_result_is_of_the_requested_tokens(results: dict[str, Any]) -> None:
    tokens = results["tokens"]
    assert {each["tokens"] for each in (*tokens["native"], *tokens["builds"])} == {20_000}
    assert [(each["orders"], each["workers"]) for each in tokens["builds"]] == [
        (orders, workers) for orders in ("n = 1 to 4", "n = 2") for workers in (1, 2)
    ]
    one, two = tokens["builds"][:2]
    assert one["xxh3"] == two["xxh3"]
    for each in tokens["builds"]:
        assert 0 < each["wall_s"] < each["process_wall_s"]
        assert 0 < each["cpu_s"] < each["process_cpu_s"]
    (memory,) = results["memory"]
    assert memory["tokens"] == 50_000
    assert memory["runs"] >= 1
    if Path("/proc/self/status").exists():  # of the build's own process: less than ours with the tests
        assert 20 << 20 < memory["peak_bytes"] < 256 << 20
        assert memory["of_memory"] == memory["peak_bytes"] / (256 << 20)


def test_both_ways_of_export_write_the_same(results: dict[str, Any]) -> None:
    export = results["export"]
    assert export["identical"] is True
    assert export["counted"]["records"] == export["stored"]["records"] > 5_000


def test_pruned_caches_are_relative_to_the_unpruned_one(results: dict[str, Any]) -> None:
    (log,) = results["pruning"]
    assert log["calls"] == 44
    assert log["held_out_calls"] == 10
    for kind in ("static", "dynamic"):
        whole, cut = log[kind]["whole"], log[kind]["cut"]
        assert whole["n_accept"] >= log["none"]["n_accept"] > 0
        assert [each["budget"] for each in cut] == [0.5, 0.2, 0.1, 0.05]
        assert all(each["bytes"] <= each["budget"] * whole["bytes"] for each in cut)
        assert all(each["of_whole"] == each["n_accept"] / whole["n_accept"] for each in cut)


def test_unselected_sections_are_omitted(results: dict[str, Any]) -> None:
    assert [name for name in SECTIONS if results[name] is None] == ["text", "llama", "cluster"]
    goals, *grids = build_grids(results)
    assert len(grids) == 4
    assert len(goals.rows) == 4 + 1 + 2 + 2
    for grid in (goals, *grids):
        assert all(len(row) == len(grid.headings) for row in (*grid.rows, *grid.summaries))


def test_the_page_has_a_section_for_it(results: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "build.json").write_text(json.dumps(results))
    publish(tmp_path, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "## Building caches" in text
    assert str(LOG.parent) not in text


def test_from_text_and_beside_a_program_in_llamas_place(tmp_path: Path) -> None:
    """The program is a stand-in that takes the arguments of llama-lookup-create, and counts with ours."""
    program = tmp_path / "llama-lookup-create"
    program.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "given = dict(zip(sys.argv[2::2], sys.argv[3::2]))\n"
        "assert sys.argv[1] == '--no-escape'\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'suffixsvc_cli', 'build', given['-f'],\n"
        "    '--tokenizer', given['-m'], '--lookup-static', given['-lcs'], '--exact-counts', '--force'])\n"
    )
    model = write_tiny_llama(tmp_path / "bytes.gguf")  # its tokens are bytes
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    options = dataclasses.replace(
        SMALL,
        sections=("text", "llama"),
        text_bytes=20_000,
        tokenizers=(model,),
        llama_bin=tmp_path,
        target=model,
        rounds=1,
    )
    found = run_build_bench(options)
    one, two = found["text"]
    assert one["tokens"] == two["tokens"] > 2_000
    assert one["tokenise_cpu_s"] > 0
    llama = found["llama"]
    assert llama["identical"] is True
    assert llama["tokens"] > 2_000
    assert llama["text"]["ratio_wall_s"] > 0
    assert len(build_grids(found)) == 3


def test_token_ids_are_those_of_the_seed_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "ids.parquet"
    assert write_ids(path, synthetic_outputs(5_000, 3)) == 5_000
    (file,) = find_logs([path], ReadOptions())
    read = [call.response for call in read_calls(file, ReadOptions(), ReadReport())]
    assert len(read) == 10
    assert all(np.array_equal(a, b) for a, b in zip(read, synthetic_outputs(5_000, 3), strict=True))
    assert not np.array_equal(read[0], next(synthetic_outputs(5_000, 4)))


def test_the_text_of_every_machine_has_its_size_and_no_newline_at_its_end(tmp_path: Path) -> None:
    text = source_text(30_000)
    assert 29_000 < len(text) <= 30_000
    assert not text.endswith("\n")
    (tmp_path / "own.txt").write_text("one\ntwo\n\n")
    assert source_text(1000, tmp_path / "own.txt") == "one\ntwo"


def test_what_cannot_work_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    for wrong in (
        {"sections": ("odd",)},
        {"llama_bin": tmp_path},
        {"logs": (tmp_path / "none.jsonl",)},
        {"llama_bin": tmp_path, "target": LOG},  # no program there
    ):
        with pytest.raises(InvalidInputError):
            BuildBenchOptions(**wrong)  # type: ignore[arg-type] # what callers may send
    app = typer.Typer()
    app.command()(bench_build)
    for arguments in (
        ["--tokens", "12Q"],
        ["--records", "10"],
        ["--memory", "much"],
        ["--folder", str(tmp_path / "none")],
    ):
        assert isinstance(CliRunner().invoke(app, arguments).exception, InvalidInputError)


def test_a_part_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"data\.mdb"):
        run_part("suffixsvc_bench.build.part", "export_folder", data=tmp_path, folder=tmp_path)
    with pytest.raises(StoreError, match="failed"):
        run_program([sys.executable, "-c", "raise SystemExit(3)"])


def test_a_program_reports_its_progress() -> None:
    seen: list[float] = []
    script = "import time; print('0.25', '0.5000', sep='\\n', flush=True); time.sleep(1); print('{}')"
    assert run_program([sys.executable, "-c", script], "", seen.append).stdout == "0.25\n0.5000\n{}\n"
    assert seen
    assert set(seen) <= {0.25, 0.5}
    assert seen[-1] == 0.5


def test_the_verb_prints_tables_or_json() -> None:
    app = typer.Typer()
    app.command()(bench_build)
    # one build; "tokens" are five
    few = ["--section", "memory", "--memory-tokens", "2K", "--memory", "256M", "--seed", "5"]
    table = CliRunner().invoke(app, few)
    assert table.exit_code == 0, table.output
    assert "memory limit" in table.stdout
    assert "seed 5" in table.stdout
    data = json.loads(CliRunner().invoke(app, [*few, "--json"]).stdout)
    assert data["options"]["seed"] == 5
    assert [each["tokens"] for each in data["memory"]] == [2_000]

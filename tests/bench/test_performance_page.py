"""The page about performance: complete, written from the JSON of the verbs, without paths of the machine."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.decode.charts import decode_charts
from suffixsvc_bench.decode.figures import row_of
from suffixsvc_bench.decode.options import DecodeOptions
from suffixsvc_bench.decode.pricing.measured import Measured
from suffixsvc_bench.decode.pricing.supplied_costs import SuppliedCostRow
from suffixsvc_bench.index.options import IndexBenchOptions
from suffixsvc_bench.index.parts.segment import run_segment_bench
from suffixsvc_bench.index.run import run_index_bench
from suffixsvc_bench.page.publish import publish
from suffixsvc_bench.replay.document import read_comparison
from suffixsvc_bench.replay.grids import headline_grids, summary_grids
from suffixsvc_bench.report.provenance import provenance
from suffixsvc_bench.report.tables import Grid, markdown_grid
from suffixsvc_bench.speculation.paired import Outcome, Pair
from suffixsvc_cli.bench import app


def decoded() -> dict[str, Any]:
    """What `bench decode` writes, of one workload."""
    pairs = [Pair("a", "agent", Outcome(10, 0.8, 4, 8, 6, {"suffix": 6}), Outcome(10, 1.0, 10))] * 3
    row = row_of("sql", "expected-gain", pairs)
    row = replace(row, speedup=replace(row.speedup, low=1.2, high=1.3))
    found = Measured(provenance(), "m.gguf", "", 2, {"costs": [0.0, 1.0, 1.5]}, OPTIONS, [row], {"sql": 1.2})
    as_read: dict[str, Any] = json.loads(json.dumps(found.as_dict()))
    return as_read


OPTIONS = DecodeOptions((Path("m.gguf"),), workloads=("sql",), calls=3, rounds=1, threads=2).as_dict()


#: made up, because they take five processes each; tests/bench/test_rpc_bench.py measures them
IDENTITY_STEPS: list[dict[str, Any]] = [
    {"mode": mode, "calls": 4, "ratio": 1.2, "control_ratio": 1.0, "echo_ratio": 1.1}
    | {
        name: {"p50": 90.0, "p90": 99.0, "p99": 120.0}
        for name in ("tls", "plain", "control", "echo_tls", "echo")
    }
    for mode in ("hot", "cold")
]


def invoke(*args: object) -> str:
    words = [str(a) for a in args]
    with mock.patch.object(sys, "argv", ["suffixsvc", "bench", *words]):
        result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("measured")
    logs = []
    for name, first in (("one", 10), ("two", 90)):
        logs.append(folder / f"{name}.jsonl")
        calls = [{"response_token_ids": [*range(first, first + 20)] * 3, "agent": "a"} for _ in range(6)]
        logs[-1].write_text("".join(json.dumps(call) + "\n" for call in calls), encoding="utf-8")
    methods = [w for m in ("ours-linear", "ours-tree", "ours-auto", "prompt-lookup") for w in ("--method", m)]
    options = [*methods, "--agent", "one=a", "--seed", "3", "--no-sweep", "--json"]
    (folder / "replay.json").write_text(invoke("replay", *logs, *options), encoding="utf-8")
    small = IndexBenchOptions(
        sizes=(3_000, 6_000),
        kinds=("realistic",),
        output_tokens=100,
        step_outputs=2,
        removed_outputs=10,
        prompt_tokens=500,
        peer=False,
        folder=folder,
    )
    (folder / "index.json").write_text(json.dumps(run_index_bench(small)), encoding="utf-8")
    (folder / "segment.json").write_text(json.dumps(run_segment_bench([50_000])), encoding="utf-8")
    few = ["--transport", "unix", "--kind", "unary", "--calls", "4", "--rounds", "2", "--pause-ms", "0"]
    wire = json.loads(invoke("rpc", *few, "--no-followers", "--no-identities", "--no-neighbours", "--json"))
    wire["identity_steps"] = IDENTITY_STEPS
    (folder / "rpc.json").write_text(json.dumps(wire), encoding="utf-8")
    return folder


def test_a_page_of_everything(measured: Path, tmp_path: Path) -> None:
    page = tmp_path / "docs" / "performance.md"
    page.parent.mkdir()
    said = invoke("publish", measured, "--page", page)
    text = page.read_text(encoding="utf-8")
    for heading in ("# Performance", "## Drafting", "## The index", "### Restart", "## Sealed segments"):
        assert f"{heading}\n" in text
    assert "## Over the wire" in text
    assert all(f"| TLS and token, {row['mode']} |" in text for row in IDENTITY_STEPS)
    assert str(measured) not in text
    assert str(Path.home()) not in text
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    assert len(pictures) == len(set(pictures)) >= 6
    for picture in pictures:
        drawn = ElementTree.parse(page.parent / picture).getroot()
        assert drawn.tag.endswith("svg")
    assert len(said.splitlines()) == 1 + len(pictures)
    widths = [line.count("|") for line in text.splitlines() if line.startswith("|")]
    assert min(widths) > 2


def test_old_plots_are_removed_and_missing_sections_omitted(measured: Path, tmp_path: Path) -> None:
    only = tmp_path / "only"
    only.mkdir()
    (only / "segment.json").write_bytes((measured / "segment.json").read_bytes())
    old = tmp_path / "page" / "old.svg"
    old.parent.mkdir()
    old.write_text("<svg/>", encoding="utf-8")
    assert publish(only, tmp_path / "page.md") == [tmp_path / "page.md"]
    assert not old.exists()
    assert "## Drafting" not in (tmp_path / "page.md").read_text(encoding="utf-8")


def test_sections_without_new_results_can_be_kept(measured: Path, tmp_path: Path) -> None:
    page, only, data = tmp_path / "page.md", tmp_path / "only", decoded()
    publish(measured, page)
    before = page.read_text(encoding="utf-8")
    pictures = {path.name for path in page.with_suffix("").iterdir()}
    only.mkdir()
    (only / "decode.json").write_text(json.dumps(data), encoding="utf-8")
    publish(only, page, keep=True)
    after = page.read_text(encoding="utf-8")
    assert after.startswith(before.rstrip())
    assert "| sql | expected-gain | 1.25 (1.20 to 1.30) |" in after
    assert {path.name for path in page.with_suffix("").iterdir()} >= {*pictures, "decode.json"}
    assert json.loads((page.with_suffix("") / "decode.json").read_text(encoding="utf-8")) == data
    publish(only, page, keep=True)
    assert page.read_text(encoding="utf-8") == after


def test_further_runs_go_below_the_first(tmp_path: Path) -> None:
    page, data = tmp_path / "page.md", decoded()
    priced = [asdict(SuppliedCostRow("sql", "expected-gain", 2.5, 3.0, 8, 6, {"draft-model": 6}))]
    with_draft = data | {
        "draft": "d.gguf",
        "prices": {"gpu": "assumed, not measured: a", "mine": "measured"},
        "priced": {"gpu": priced, "mine": priced},
    }
    sweep = data | {"rows": [*data["rows"], *(data["rows"][0] | {"variant": f"K = {k}"} for k in (4, 8))]}
    warm = data | {"rows": [*data["rows"], data["rows"][0] | {"workload": "sql at 0.7"}]}
    layers = data | {"rows": [*data["rows"], data["rows"][0] | {"variant": "expected-gain, suffix"}]}
    runs = {
        "decode": data,
        "decode-layers": layers,
        "decode-k": sweep,
        "decode-temperature": warm,
        "decode-draft": with_draft,
    }
    for name, run in runs.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(run), encoding="utf-8")
    publish(tmp_path, page)
    first, rest = page.read_text(encoding="utf-8").split("### Layers by themselves\n")
    alone, rest = rest.split("### Speed against K\n")
    second, rest = rest.split("### Speed against temperature\n")
    warmer, third = rest.split("### With a draft model\n")
    for text, name in zip((first, alone, second, warmer, third), runs, strict=True):
        assert f"Every pair is in {name}.json" in text
        assert json.loads((tmp_path / "page" / f"{name}.json").read_text(encoding="utf-8")) == runs[name]
    assert "![What a draft of K tokens can bring]" in first
    assert "![Speed against K](page/speed-against-k.svg)" in second
    assert "| sql | expected-gain, suffix |" in alone
    assert "| sql | K = 8 |" in second
    assert "| sql at 0.7 | expected-gain |" in warmer
    assert "drafts by d.gguf" not in first + second
    assert "drafts by d.gguf" in third
    assert "#### At the assumed prices of gpu\n\nassumed, not measured: a.\n" in third
    assert "#### At the prices of mine\n\nmeasured.\n" in third


def test_every_call_is_drawn_from_the_worst_to_the_best() -> None:
    ratios = {"sql": {"a": [1.5, 0.5], "b": [1.0]}, "chat": {"a": [1.0]}}
    pairs = {
        w: {n: [{"ratio": r} for r in found] for n, found in variants.items()}
        for w, variants in ratios.items()
    }
    chart = next(c for c in decode_charts(decoded() | {"pairs": pairs}) if c.title.startswith("Every call"))
    assert [(s.name, [y for _, y in s.points]) for s in chart.series] == [
        ("a", [0.5, 1.0, 1.5]),
        ("b", [1.0]),
    ]


def test_the_possible_gain_follows_from_the_costs() -> None:
    chart = decode_charts(decoded())[0]
    assert {s.name: s.points for s in chart.series}["80% accepted"] == [(0, 1.0), (1, 1.2)]
    assert [y for _, y in chart.series[-1].points] == [1.0, pytest.approx(2 / 1.5)]


def test_the_values_are_those_of_the_run(measured: Path) -> None:
    found = read_comparison(measured / "replay.json")
    data = json.loads((measured / "replay.json").read_text(encoding="utf-8"))
    assert json.loads(json.dumps([asdict(result) for result in found.results])) == data["traces"]
    grid = headline_grids(found.results, found.plan)[0]
    assert grid.headings[1] == "ours, tree, at 0.01"
    speedups = {
        trace["name"]: next(r["speedups"]["0.01"] for r in trace["runs"] if r["method"] == "ours-tree")
        for trace in data["traces"]
    }
    assert {row[0]: row[1] for row in grid.rows} == {k: f"{v:.3f}" for k, v in speedups.items()}
    assert len(summary_grids(found.results, found.plan)) == 3


def test_the_commands_reproduce_the_runs(measured: Path, tmp_path: Path) -> None:
    """A command is that of the run, with the names of its files only; a run from Python has none."""

    def command(name: str) -> str:
        document = json.loads((measured / f"{name}.json").read_text(encoding="utf-8"))
        return str(document["provenance"]["command"])

    replayed = "suffixsvc bench replay one.jsonl two.jsonl --method ours-linear "
    assert command("replay").startswith(replayed)
    assert command("replay").endswith("--agent one=a --seed 3 --no-sweep --json")
    assert command("rpc").startswith("suffixsvc bench rpc --transport unix --kind unary --calls 4 ")
    assert command("index") == ""
    publish(measured, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert f"To repeat it:\n\n    {replayed}" in text
    assert text.count("To repeat it:") == 2


def test_a_document_without_a_command_has_a_section(measured: Path, tmp_path: Path) -> None:
    """Documents of earlier versions."""
    old = json.loads((measured / "rpc.json").read_text(encoding="utf-8"))
    del old["provenance"]["command"]
    (tmp_path / "rpc.json").write_text(json.dumps(old), encoding="utf-8")
    publish(tmp_path, tmp_path / "page.md")
    assert "To repeat it" not in (tmp_path / "page.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["bench", "rpc", "--json"], "suffixsvc bench rpc --json"),
        (["bench", "index", "--log", "/home/me/a b.jsonl"], "suffixsvc bench index --log 'a b.jsonl'"),
        (["bench", "build", "--logs=/home/me/a.jsonl"], "suffixsvc bench build --logs=a.jsonl"),
        (["bench", "decode", "--llama-bin", "llama.cpp/bin/"], "suffixsvc bench decode --llama-bin bin/"),
        (["replay", "a.jsonl"], ""),
    ],
)
def test_folders_are_no_part_of_a_command(
    words: list[str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/suffixsvc", *words])
    assert provenance().command == command


def test_what_cannot_be_read_is_named(measured: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    with pytest.raises(InvalidInputError, match="must contain results"):
        publish(tmp_path, page)
    for name, content in (
        ("index.json", "{"),
        ("index.json", "{}"),
        ("index.json", "3"),
        ("replay.json", "[]"),
        ("replay.json", '{"format": 99}'),
    ):
        folder = tmp_path / "bad"
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        (folder / name).write_text(content, encoding="utf-8")
        with pytest.raises(InvalidInputError, match=name):
            publish(folder, page)
        assert not page.exists()
    with pytest.raises(InvalidInputError, match=r"the page .* must be writable"):
        publish(measured, tmp_path / "bad" / "replay.json" / "page.md")
    for place in (tmp_path, tmp_path / "page"):
        with pytest.raises(InvalidInputError, match="--page must be a file"):
            publish(measured, place)


def test_markdown_tables() -> None:
    grid = Grid(["what | how", "x"], rows=[["a|b", "1"]], summaries=[["mean", ""]])
    assert markdown_grid(grid).splitlines() == [
        r"| what \| how | x |",
        "|---|---:|",
        r"| a\|b | 1 |",
        "| **mean** |  |",
    ]

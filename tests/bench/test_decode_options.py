"""`bench decode`: what makes no sense is refused before anything is measured; a whole run on a real model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from suffixsvc_bench.decode.options import DecodeOptions
from suffixsvc_bench.decode.priced import read_prices
from suffixsvc_bench.decode.rig import RigOptions
from suffixsvc_bench.decode.tables import against_grid, decode_grid, forecast_grid
from suffixsvc_driver.settings_file import read_settings
from support.tiny_kinds import KINDS
from typer.testing import CliRunner

from suffixsvc.cli.bench import app
from suffixsvc.errors import InvalidConfigError, InvalidInputError, SuffixError


@pytest.fixture
def options(tmp_path: Path) -> DecodeOptions:
    target = KINDS["moe"](tmp_path / "moe.gguf", seed=1)
    return DecodeOptions(RigOptions(target, None, 1, 2048, 16), ["chat"], 3, 1)


def test_what_makes_sense_passes(options: DecodeOptions) -> None:
    options.check()
    replace(options, policies=["fixed-k", "class-k"], ks=[4], temperatures=[0.5]).check()
    replace(options, experts=[None, 1, 2], prices=[read_prices("gpu")]).check()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"temperatures": []}, "--temperature names nothing"),
        ({"temperatures": [-1.0]}, "temperature"),
        ({"workloads": ["nosuch"]}, "no such workload"),
        ({"workloads": ["log"]}, "needs a log"),
        ({"workloads": ["log"], "log": Path("nowhere.jsonl")}, "nowhere.jsonl"),
        ({"workloads": ["files"]}, "--file names nothing"),
        ({"workloads": ["files"], "files": [Path("nowhere.txt")]}, "nowhere.txt"),
        ({"policies": ["foo"]}, "no such policy"),
        ({"policies": ["fixed-k"], "ks": []}, "--k names nothing"),
        ({"policies": ["fixed-k"], "ks": [0]}, "k_"),
        ({"layers": ["foo"]}, "no such layer"),
        ({"layers": ["draft-model"]}, "there is no draft model"),
        ({"policies": ["adaptive-k"], "layers": ["suffix"]}, "--layers is for expected gain"),
        ({"temperatures": [0.7], "prices": ["gpu"]}, "--price-with goes by greedy"),
        ({"experts": []}, "--experts names nothing"),
        ({"experts": [99]}, "experts_used makes no sense"),
        ({"llama_bin": Path("/")}, "no llama-server"),
        ({"llama_bin": Path("/"), "llama_modes": ["turbo"]}, "no such mode"),
    ],
)
def test_what_makes_none_is_refused(options: DecodeOptions, change: dict[str, Any], match: str) -> None:
    if "prices" in change:
        change = change | {"prices": [read_prices(name) for name in change["prices"]]}
    with pytest.raises((InvalidInputError, InvalidConfigError), match=match):
        replace(options, **change).check()


def test_programs_of_llama_cpp_that_are_not_there_are_named(options: DecodeOptions, tmp_path: Path) -> None:
    (tmp_path / "llama-server").touch()
    servers = replace(options, llama_bin=tmp_path)
    servers.check()
    with pytest.raises(InvalidInputError, match="no llama-lookup"):
        replace(servers, llama_programs=True).check()
    (tmp_path / "llama-lookup").touch()
    replace(servers, llama_programs=True).check()
    drafting = replace(servers, rig=replace(servers.rig, draft=tmp_path / "draft.gguf"), llama_programs=True)
    with pytest.raises(InvalidInputError, match="no llama-speculative-simple, llama-speculative"):
        drafting.check()


def test_an_empty_list_is_refused_by_the_command(real_model: Path) -> None:
    for option, value in (("--k", ","), ("--temperature", ","), ("--experts", ",")):
        with pytest.raises(SuffixError, match=f"{option} names nothing"):
            CliRunner().invoke(
                app,
                ["decode", "--target", str(real_model), "--policy", "fixed-k", option, value],
                catch_exceptions=False,
            )


@pytest.mark.model
def test_a_whole_run(real_model: Path, tmp_path: Path) -> None:
    """Two temperatures, two workloads, prices, a report and the best setting; a real service beside."""
    prompt = tmp_path / "question.txt"
    prompt.write_text("Count from one to ten.", encoding="utf-8")
    report, best = tmp_path / "report.json", tmp_path / "best.toml"
    small = ["--calls", "1", "--rounds", "1", "--max-tokens", "12", "--max-width", "4", "--threads", "1"]
    asked = ["--workload", "chat", "--workload", "files", "--file", str(prompt), "--temperature", "0,0.7"]
    ways = ["--policy", "expected-gain", "--policy", "fixed-k", "--k", "2", "--price-with", "gpu"]
    files = ["--report", str(report), "--best", str(best), "--prepared", str(tmp_path / "prepared.json")]
    result = CliRunner().invoke(
        app,
        ["decode", "--target", str(real_model), *small, *asked, *ways, *files],
        catch_exceptions=False,
    )
    assert result.exit_code == 0, result.output
    found = json.loads(report.read_text(encoding="utf-8"))
    assert [row["workload"] for row in found["rows"][::2]] == ["chat", "files", "chat at 0.7", "files at 0.7"]
    assert {row["variant"] for row in found["rows"]} == {"expected-gain", "K = 2"}
    assert {row["workload"] for row in found["priced"]["gpu"]} == {"chat", "files"}
    assert found["priced"]["gpu"][0]["speedup"] > 0.9
    assert found["forecasts"]["chat"] > 0.9  # of 12 tokens, one that was drafted in vain is 4 %
    answers = [p["outcome"] for ways in found["pairs"].values() for pairs in ways.values() for p in pairs]
    assert len(answers) == 8
    assert all(answer["tokens"] > 0 for answer in answers)
    assert len(decode_grid(found).rows) == 8
    assert len(forecast_grid(found).rows) == 4
    assert against_grid(found) is not None
    kept = read_settings(best)
    assert kept.target.max_width == 4
    assert kept.sampling.temperature == 0.0
    assert "times plain decoding" in result.output

"""`bench decode`: contradictory options are refused before a measurement; a whole run on a real model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from suffixsvc.errors import InvalidConfigError, InvalidInputError, SuffixError
from suffixsvc_bench.decode.checks import check_options
from suffixsvc_bench.decode.options import DecodeOptions
from suffixsvc_bench.decode.tables import against_grid, decode_grid, forecast_grid
from suffixsvc_cli.bench import app
from suffixsvc_driver.profile.settings_file import read_settings
from support.tiny_kinds import KINDS


@pytest.fixture
def options(tmp_path: Path) -> DecodeOptions:
    target = KINDS["moe"](tmp_path / "moe.gguf", seed=1)
    return DecodeOptions((target,), workloads=("chat",), calls=3, rounds=1, threads=1, max_width=16)


def test_valid_options_pass(options: DecodeOptions) -> None:
    check_options(options)
    check_options(replace(options, policies=("fixed-k", "class-k"), ks=(4,), temperatures=(0.5,)))
    check_options(replace(options, experts=(None, 1, 2), prices=("gpu",)))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"temperatures": []}, "--temperature must have at least one value"),
        ({"temperatures": [-1.0]}, "temperature"),
        ({"workloads": ["nosuch"]}, "--workload must be known"),
        ({"workloads": ["log"]}, "--log must be a file"),
        ({"workloads": ["log"], "log": Path("nowhere.jsonl")}, "nowhere.jsonl"),
        ({"workloads": ["files"]}, "--file must be given"),
        ({"workloads": ["files"], "files": [Path("nowhere.txt")]}, "nowhere.txt"),
        ({"policies": ["foo"]}, "--policy must be known"),
        ({"policies": ["fixed-k"], "ks": []}, "--k must have at least one value"),
        ({"policies": ["fixed-k"], "ks": [0]}, "k_"),
        ({"layers": ["foo"]}, "--layers must name known layers"),
        ({"layers": ["draft-model"]}, "--draft must be given"),
        ({"policies": ["adaptive-k"], "layers": ["suffix"]}, "--policy must include expected-gain"),
        ({"temperatures": [0.7], "prices": ["gpu"]}, "--temperature must include 0"),
        ({"experts": []}, "--experts must have at least one value"),
        ({"experts": [99]}, "experts_used must be in 1"),
        ({"llama_bin": Path("/")}, "no llama-server"),
        ({"llama_bin": Path("/"), "llama_modes": ["turbo"]}, "--llama-mode must be a mode"),
    ],
)
def test_invalid_options_are_refused(options: DecodeOptions, change: dict[str, Any], match: str) -> None:
    change = {name: tuple(value) if isinstance(value, list) else value for name, value in change.items()}
    with pytest.raises((InvalidInputError, InvalidConfigError), match=match):
        check_options(replace(options, **change))


def test_missing_programs_of_llama_cpp_are_named(options: DecodeOptions, tmp_path: Path) -> None:
    (tmp_path / "llama-server").touch()
    servers = replace(options, llama_bin=tmp_path)
    check_options(servers)
    with pytest.raises(InvalidInputError, match="no llama-lookup"):
        check_options(replace(servers, llama_programs=True))
    (tmp_path / "llama-lookup").touch()
    check_options(replace(servers, llama_programs=True))
    drafting = replace(servers, drafts=(tmp_path / "draft.gguf",), llama_programs=True)
    with pytest.raises(InvalidInputError, match="no llama-speculative-simple, llama-speculative"):
        check_options(drafting)


def test_an_empty_list_is_refused_by_the_command(real_model: Path) -> None:
    for option, value in (("--k", ","), ("--temperature", ","), ("--experts", ",")):
        with pytest.raises(SuffixError, match=f"{option} must have at least one value"):
            CliRunner().invoke(
                app,
                ["decode", "--target", str(real_model), "--policy", "fixed-k", option, value],
                catch_exceptions=False,
            )


@pytest.mark.model
def test_a_whole_run(real_model: Path, tmp_path: Path) -> None:
    """Two temperatures, two workloads, supplied costs, report, the best setting; a real service beside."""
    prompt = tmp_path / "question.txt"
    prompt.write_text("Count from one to ten.", encoding="utf-8")
    report, best = tmp_path / "report.json", tmp_path / "best.toml"
    small = ["--calls", "1", "--rounds", "1", "--max-tokens", "12", "--max-width", "4", "--threads", "1"]
    small += ["--context", "256"]  # the costs are measured after half of it
    workloads = ["--workload", "chat", "--workload", "files", "--file", str(prompt), "--temperature", "0,0.7"]
    variants = ["--policy", "expected-gain", "--policy", "fixed-k", "--k", "2", "--price-with", "gpu"]
    files = ["--report", str(report), "--best", str(best), "--prepared", str(tmp_path / "prepared.json")]
    result = CliRunner().invoke(
        app,
        ["decode", "--target", str(real_model), *small, *workloads, *variants, *files],
        catch_exceptions=False,
    )
    assert result.exit_code == 0, result.output
    found = json.loads(report.read_text(encoding="utf-8"))
    assert [row["workload"] for row in found["rows"][::2]] == ["chat", "files", "chat at 0.7", "files at 0.7"]
    assert {row["variant"] for row in found["rows"]} == {"expected-gain", "K = 2"}
    assert {row["workload"] for row in found["priced"]["gpu"]} == {"chat", "files"}
    assert found["priced"]["gpu"][0]["speedup"] > 0.9
    assert found["forecasts"]["chat"] > 0.9  # of 12 tokens, one that was drafted in vain is 4 %
    answers = [
        p["outcome"] for variants in found["pairs"].values() for pairs in variants.values() for p in pairs
    ]
    assert len(answers) == 8
    assert all(answer["tokens"] > 0 for answer in answers)
    assert len(decode_grid(found).rows) == 8
    assert len(forecast_grid(found).rows) == 4
    assert against_grid(found) is not None
    kept = read_settings(best)
    assert kept.target.max_width == 4
    assert kept.sampling.temperature == 0.0
    assert "times plain decoding" in result.output

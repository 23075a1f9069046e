"""`bench http` beside llama-server, on a real model: pairs, modes, comparison of the answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from suffixsvc_cli.bench import app
from support.llama_tools import Tools

pytestmark = pytest.mark.interop


def test_a_run_beside_llama_server(tools: Tools, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    sizes = ["--calls", "2", "--turns", "3", "--parallel", "2", "--threads", "1", "--context", "2048"]
    sizes += ["--max-tokens", "16", "--workload", "chat", "--llama-mode", "ngram-mod"]
    given = ["--target", str(tools.model), "--llama-bin", str(tools.folder), "--report", str(report)]
    result = CliRunner().invoke(app, ["http", *given, *sizes], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = json.loads(report.read_text(encoding="utf-8"))
    assert found["failed"] == {}
    servers = ["suffixsvc, no drafts", "llama-server plain", "suffixsvc", "llama-server ngram-mod"]
    assert [row["subject"] for row in found["rows"]] == ["driver", *servers]
    for row in found["rows"]:
        assert row["agreement"]["different"] == []
        assert row["agreement"]["same"] + row["agreement"]["flips"] == 2
        assert row["whole"]["pairs"] == row["generation"]["pairs"] == 2
    assert [row["workload"] for row in found["best"]] == ["chat"]
    assert sorted(found["clients"]) == sorted(servers[:3])
    both = {"suffixsvc", "llama-server plain"}
    assert set(found["conversations"]) == set(found["schemas"]) == both
    # each server applies the model's chat template: the first prompts agree
    assert len({turns["turns"][0]["prompt_tokens"] for turns in found["conversations"].values()}) == 1
    assert len(found["figures"]) == 7
    assert set(found["idle"]) <= set(servers)

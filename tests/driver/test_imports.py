"""Imports of the driver: its entry points, and no heavy module before it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

import suffixsvc_driver


def test_the_entry_points_come_from_the_package() -> None:
    from suffixsvc_driver import LlamaTarget, PromptLookupLayer, SuffixLayer, generate, measured_curve
    from suffixsvc_driver.decode import loop
    from suffixsvc_driver.layers import prompt_lookup, suffix
    from suffixsvc_driver.profile import target_cost
    from suffixsvc_driver.targets import single

    assert LlamaTarget is single.LlamaTarget
    assert PromptLookupLayer is prompt_lookup.PromptLookupLayer
    assert SuffixLayer is suffix.SuffixLayer
    assert generate is loop.generate
    assert measured_curve is target_cost.measured_curve
    for name in suffixsvc_driver.__all__:
        assert hasattr(suffixsvc_driver, name), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        suffixsvc_driver.nothing  # type: ignore[attr-defined]  # noqa: B018  # it is read to see it refused


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("suffixsvc_driver", ["llama_cpp", "grpc", "lmdb", "suffixsvc.core", "suffixsvc.engine"]),
        ("suffixsvc_driver.targets.single", ["llama_cpp", "grpc", "lmdb", "suffixsvc.engine"]),
        ("suffixsvc_driver.layers.prompt_lookup", ["llama_cpp", "grpc", "lmdb", "suffixsvc.engine"]),
        ("suffixsvc_driver.retokenizing", ["llama_cpp", "grpc", "lmdb", "suffixsvc.core"]),
        ("suffixsvc_driver.workers.client.grpc_client", ["llama_cpp", "lmdb", "suffixsvc.core"]),
        ("suffixsvc_cli.server.draft_worker", ["llama_cpp", "grpc", "lmdb", "suffixsvc.core"]),
    ],
)
def test_importing_loads_nothing_heavy(module: str, absent: list[str]) -> None:
    program = f"import sys, {module}; print([m for m in {absent!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", done.stdout

"""Imports of the adapters: each loads its own engine and no other package loads any.

Under ``make adapters`` the engines are installed.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

ENGINES = ["torch", "transformers", "llama_cpp", "vllm", "sglang", "tensorrt_llm"]
BACKENDS = ["grpc", "lmdb", "suffixsvc.engine", "suffixsvc_client"]
ADAPTERS = "suffixsvc_adapters"


@pytest.mark.parametrize(
    "imports",
    [
        # in one interpreter; each module with the modules that must not be loaded after its import
        [
            ("suffixsvc", [*ENGINES, *BACKENDS, "suffixsvc_driver"]),
            ("suffixsvc_driver", [*ENGINES, *BACKENDS, ADAPTERS]),
            (ADAPTERS, [*ENGINES, *BACKENDS, "suffixsvc.core"]),
            (f"{ADAPTERS}.vllm_proposer", [*ENGINES, *BACKENDS]),
            (f"{ADAPTERS}.sglang_ngram", [*ENGINES, *BACKENDS]),
            (f"{ADAPTERS}.trtllm_endpoint", [*ENGINES, *BACKENDS]),
            (f"{ADAPTERS}.llama_cpp_python", ["torch", "transformers", *BACKENDS]),
            ("suffixsvc_client", ["torch", "transformers", "lmdb", "suffixsvc.engine"]),
        ],
        pytest.param(
            [(f"{ADAPTERS}.huggingface", ["llama_cpp", "vllm", *BACKENDS])], marks=pytest.mark.adapters
        ),
    ],
    ids=["without torch", "with torch"],
)
def test_importing_loads_no_engine_but_its_own(imports: list[tuple[str, list[str]]]) -> None:
    program = "import importlib, sys\n" + "".join(
        f"importlib.import_module({module!r})\n"
        f"there = [m for m in {absent!r} if m in sys.modules]\n"
        f"assert not there, ({module!r}, there)\n"
        for module, absent in imports
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("module", "engine", "extra"),
    [("llama_cpp_python", "llama_cpp", "llama"), ("huggingface", "torch", "huggingface")],
)
def test_an_engine_that_is_missing_is_named_with_its_remedy(module: str, engine: str, extra: str) -> None:
    program = (
        f"import sys; sys.modules[{engine!r}] = None\n"
        "from suffixsvc.errors import MissingExtraError\n"
        f"try:\n    import {ADAPTERS}.{module}\nexcept MissingExtraError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert f"pip install 'suffixsvc[{extra}]'" in done.stdout

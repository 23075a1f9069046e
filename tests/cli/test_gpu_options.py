"""GPU options on the command line: parsed once for all verbs, refused in one line, used by every process.

The GPUs are simulated (tests/support/simulated_gpu.py), also in the processes that a verb starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from suffixsvc.errors import InvalidConfigError
from suffixsvc.runtime.child_process import ChildProcesses
from suffixsvc.verb_options import with_options
from suffixsvc_bench.decode.options import DecodeOptions
from suffixsvc_bench.demo.options import DemoOptions
from suffixsvc_bench.recording.options import RecordingOptions
from suffixsvc_bench.serving.options import HttpOptions
from suffixsvc_bench.speculation.model_fixture import FixtureOptions
from suffixsvc_cli.generate.options import Options
from suffixsvc_cli.models.probe import ProbeOptions
from suffixsvc_cli.server.draft_worker import WorkerOptions
from suffixsvc_driver.targets.llama.devices import gpu_devices
from suffixsvc_driver.targets.llama.offload import ALL_LAYERS, Offload
from suffixsvc_models.load_options import LoadOptions
from support.generating import Generating
from support.simulated_gpu import python_path
from support.tiny_gguf import write_tiny_llama

SMOKE = Path(__file__).parents[2] / "tools" / "gpu_smoke.py"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 32, the block of quantised KV."""
    return write_tiny_llama(tmp_path_factory.mktemp("gpu") / "m.gguf", seed=3, width=64, head=32)


def parsed(*arguments: str) -> LoadOptions:
    seen: list[LoadOptions] = []
    app = typer.Typer()

    @app.command()
    @with_options
    def verb(options: LoadOptions) -> None:
        seen.append(options)

    ran = CliRunner().invoke(app, arguments)
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    assert ran.exit_code == 0, ran.output
    return seen[0]


@pytest.mark.parametrize(
    "offload",
    [Offload(), Offload(ALL_LAYERS), Offload(7, main_gpu=1), Offload(3, tensor_split=(3.0, 0.5))],
)
def test_the_options_of_a_worker_are_read_back(offload: Offload) -> None:
    assert Offload.of(parsed(*offload.arguments())) == offload


def test_every_verb_that_loads_a_model_has_them() -> None:
    for verb in (
        Options,
        ProbeOptions,
        WorkerOptions,
        DecodeOptions,
        HttpOptions,
        DemoOptions,
        RecordingOptions,
    ):
        assert issubclass(verb, LoadOptions)
    nothing = parsed()
    assert (nothing.gpu_layers, nothing.main_gpu, nothing.tensor_split, nothing.kv_type) == (None,) * 4
    assert nothing.kv_type_or_default == "f16"


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("--gpu-layers", "many"), "--gpu-layers must be a number >= 0, or all; got 'many'"),
        (("--tensor-split", "1,x"), "--tensor-split must be numbers separated by commas"),
    ],
)
def test_what_is_no_number_names_the_option(arguments: tuple[str, ...], match: str) -> None:
    with pytest.raises(InvalidConfigError, match=match):
        parsed(*arguments)


def test_bench_decode_gives_llama_cpp_the_same_gpus() -> None:
    options = DecodeOptions((Path("m.gguf"),), threads=1, gpu_layers=ALL_LAYERS, main_gpu=1, kv_type="q8_0")
    fixture = options.fixture()
    assert (fixture.offload, fixture.kv_type) == (Offload(ALL_LAYERS, main_gpu=1), "q8_0")
    expected = "-ctk q8_0 -ctv q8_0 -ngl 999 -ngld 999 -sm none -mg 1"
    assert fixture.llama_arguments(drafting=True) == expected.split()
    split = FixtureOptions(Path("m.gguf"), None, 1, 256, 8, offload=Offload(9, tensor_split=(2, 1)))
    assert split.llama_arguments() == ["-ngl", "9", "-ts", "2.0,1.0"]
    assert DecodeOptions((Path("m.gguf"),), threads=1).fixture().llama_arguments() == []


@pytest.mark.skipif(bool(gpu_devices()), reason="llama.cpp has a GPU here")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--gpu-layers", "all"),
            "gpu_layers must be 0 where llama.cpp has no GPU; got -1, and a build without",
        ),
        (("--gpu-layers", "-2"), "gpu_layers must be an int >= -1"),
        (("--main-gpu", "0"), "main_gpu must not be given without gpu_layers"),
        (("--kv-type", "q5_0"), "kv_type must be f32 or f16 or q8_0 or q4_0"),
    ],
)
def test_bad_options_are_one_line(
    generate: Generating, model: Path, arguments: tuple[str, ...], said: str
) -> None:
    ran = generate(model, "a", *arguments)
    assert (ran.code, ran.out) == (2, ""), ran.err
    assert said in ran.err.splitlines()[-1]


def test_a_draft_worker_is_on_the_gpu(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path(tmp_path, 2))
    options = ["--gpu-layers", "2", "--main-gpu", "1", "--kv-type", "q8_0"]
    with ChildProcesses(tmp_path) as children:
        worker = children.start_draft_worker(
            model, f"unix:{tmp_path / 's'}", threads=1, context_size=256, slots=1, options=options
        )
        assert "SIM1 (simulated); 2 of 3 layers" in worker.tail()


@dataclass
class Smoke:
    """Result of `make gpu-smoke` without its setup."""

    code: int
    text: str


def smoke(model: Path, folder: Path, gpus: int) -> Smoke:
    environment = {**os.environ, "SUFFIXSVC_HOME": str(folder), "COLUMNS": "200"}
    if gpus:
        environment["PYTHONPATH"] = python_path(folder, gpus)
    done = subprocess.run(
        [sys.executable, str(SMOKE), str(model)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        preexec_fn=_one_core,
    )
    return Smoke(done.returncode, done.stdout)


def _one_core() -> None:
    """One thread in each process: that is the number of usable cores."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@pytest.mark.skipif(bool(gpu_devices()), reason="llama.cpp has a GPU here")
def test_the_smoke_test_says_that_there_is_no_gpu(model: Path, tmp_path: Path) -> None:
    ran = smoke(model, tmp_path, 0)
    assert ran.code == 2
    assert "gpu-smoke: llama.cpp has no GPU here; its backends: CPU (docs/gpu.md)" in ran.text


def test_the_smoke_test_passes_on_simulated_gpus(model: Path, tmp_path: Path) -> None:
    """Probe, exactness and generate, with a draft worker in a process of its own: all on the GPUs."""
    ran = smoke(model, tmp_path, 2)
    assert ran.code == 0, ran.text
    device = "SIM0 (simulated), SIM1 (simulated); 3 of 3 layers"
    assert f"m.gguf, {device}, 1 threads: " in ran.text
    assert f"exactness, KV q8_0, on {device}: " in ran.text
    assert "Not measured" not in ran.text, "the draft worker did not start"
    assert ran.text.splitlines()[-1] == "gpu-smoke: all checks passed"
    (curve,) = (tmp_path / "cost").iterdir()
    assert f'"device": "{device}"' in curve.read_text()

"""GPU offload: what is asked for reaches llama.cpp, by its own log, and what it cannot do is an error.

The GPUs are simulated (tests/support/simulated_gpu.py), in processes of their own; the kernels of real ones
are not tested here (`make gpu-smoke`).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from suffixsvc.errors import InvalidConfigError, ModelError
from suffixsvc_driver.decode.exactness import check_exactness
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer
from suffixsvc_driver.settings.driver_config import DriverConfig, Policy
from suffixsvc_driver.targets.llama.context import ContextSettings, LlamaContext
from suffixsvc_driver.targets.llama.devices import backend_names, gpu_devices
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.llama.offload import ALL_LAYERS, Offload
from suffixsvc_driver.targets.single import LlamaTarget
from support.simulated_gpu import captured_log
from support.tiny_gguf import write_tiny_llama

CHILD = Path(__file__).with_name("offload_child.py")
#: transformer layers of the model; llama.cpp counts the output as one more
LAYERS = 4
GPUS = ("SIM0", "SIM1")
Ran = dict[str, Any]


def run(
    model: Path, gpus: int, *cases: tuple[dict[str, Any], dict[str, Any]], full: bool = False
) -> list[Ran]:
    command = [sys.executable, str(CHILD), str(model), str(gpus), *(["full"] if full else [])]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[Ran] = json.loads(done.stdout)
    return found


def has(ran: Ran, pattern: str) -> list[str]:
    """First group of each line of llama.cpp's log that has the pattern."""
    return [found[1] for line in ran["log"] if (found := re.search(pattern, line))]


def placed(ran: Ran) -> list[str]:
    """Device of each layer, the output layer last."""
    return has(ran, r"load_tensors: layer +\d+ assigned to device (\w+)")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 32, the block of quantised KV."""
    folder = tmp_path_factory.mktemp("offload")
    return write_tiny_llama(folder / "heads.gguf", seed=3, width=64, head=32, layers=LAYERS)


@pytest.fixture(scope="module")
def ran(model: Path) -> dict[str, Ran]:
    """Every case on two simulated GPUs, by name."""
    every = ALL_LAYERS
    cases: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "none": ({}, {}),
        "all": ({"gpu_layers": every}, {}),
        "more than all": ({"gpu_layers": 99}, {}),
        "two": ({"gpu_layers": 2}, {}),
        "second": ({"gpu_layers": every, "main_gpu": 1}, {}),
        "split": ({"gpu_layers": every, "tensor_split": [1, 3]}, {}),
        "one share": ({"gpu_layers": every, "tensor_split": [0, 2]}, {}),
        "kv here": ({"gpu_layers": every, "kv_offload": False}, {}),
        "q8_0": ({"gpu_layers": every}, {"kv_type": "q8_0"}),
        "third": ({"gpu_layers": 1, "main_gpu": 2}, {}),
        "three shares": ({"gpu_layers": 1, "tensor_split": [1, 1, 1]}, {}),
    }
    return dict(zip(cases, run(model, len(GPUS), *cases.values()), strict=True))


def test_layers_are_where_llama_cpp_says_that_they_are(ran: dict[str, Ran]) -> None:
    for case, count in (("none", 0), ("all", 5), ("more than all", 5), ("two", 2), ("second", 5)):
        assert has(ran[case], r"offloaded (\d+)/5 layers to GPU") == [str(count)], case
        assert sum(device != "CPU" for device in placed(ran[case])) == count
    # the last ones first; without proportions, by free memory: that of both is the same
    assert placed(ran["two"])[:3] == ["CPU"] * 3
    assert set(placed(ran["all"])) == set(GPUS)
    assert placed(ran["second"]) == ["SIM1"] * 5
    assert placed(ran["split"]) == ["SIM0"] * 2 + ["SIM1"] * 3
    assert placed(ran["one share"]) == ["SIM1"] * 5
    assert has(ran["all"], r"(SIM\d) model buffer size") == list(GPUS)


def test_without_layers_on_gpus_none_is_used(ran: dict[str, Ran]) -> None:
    """llama.cpp would compute wide batches on it, and the cost curve of the CPU would have its costs."""
    assert has(ran["none"], "using device (SIM)") == []
    assert has(ran["all"], r"using device (\w+)") == list(GPUS)
    assert has(ran["second"], r"using device (\w+)") == ["SIM1"]


def test_kv_is_with_its_layer_or_here_and_of_the_type(ran: dict[str, Ran]) -> None:
    assert set(has(ran["all"], r"llama_kv_cache: layer +\d+: dev = (\w+)")) == set(GPUS)
    assert set(has(ran["kv here"], r"llama_kv_cache: layer +\d+: dev = (\w+)")) == {"CPU"}
    assert has(ran["q8_0"], r"K \((\w+)\)") == ["q8_0"]
    assert has(ran["q8_0"], r"flash_attn += (\w+)") == ["enabled"]


def test_where_rounding_depends_on_the_width_llama_cpp_chooses_on_a_gpu(ran: dict[str, Ran]) -> None:
    """This model is of that kind: on the CPU flash attention is then not used."""
    assert (ran["none"]["flash"], ran["all"]["flash"], ran["q8_0"]["flash"]) == (False, None, True)
    trial, context = has(ran["all"], r"flash_attn += (\w+)")
    assert (trial, context) == ("enabled", "auto")


def test_a_cost_curve_belongs_to_its_devices(ran: dict[str, Ran]) -> None:
    loaded = [name for name, each in ran.items() if "key" in each]
    keys = {name: ran[name]["key"] for name in loaded}
    assert keys.pop("more than all") == keys["all"], "the same layers on the same GPUs"
    assert keys.pop("one share") == keys["second"]
    assert len(set(keys.values())) == len(keys)
    assert ran["none"]["device"] == "cpu"
    assert ran["split"]["device"] == "SIM0 (simulated), SIM1 (simulated); 5 of 5 layers; split 1:3"
    assert ran["second"]["device"] == "SIM1 (simulated); 5 of 5 layers"
    assert ran["kv here"]["device"].endswith("KV on the CPU")


def test_the_text_is_that_of_the_cpu(ran: dict[str, Ran]) -> None:
    texts = {tuple(each["text"]) for name, each in ran.items() if "text" in each and name != "q8_0"}
    assert len(texts) == 1


def test_gpus_that_are_not_there_are_refused(ran: dict[str, Ran]) -> None:
    assert ran["third"]["class"] == ran["three shares"]["class"] == InvalidConfigError.__name__
    assert "main_gpu must be the index of a GPU; expected 0 .. 1: SIM0 (simul" in ran["third"]["error"]
    assert "at most one proportion for each GPU; expected at most 2" in ran["three shares"]["error"]


def test_a_full_gpu_is_no_damaged_file(model: Path) -> None:
    placed, here = run(model, 1, ({"gpu_layers": ALL_LAYERS}, {}), ({}, {}), full=True)
    assert placed["class"] == ModelError.__name__
    assert re.search(
        "cannot place heads.gguf on the GPU.*unable to allocate SIM0.*fewer gpu_layers", placed["error"]
    )
    assert here["device"] == "cpu"


# -- without a GPU


@pytest.mark.skipif(bool(gpu_devices()), reason="llama.cpp has a GPU here")
def test_a_build_without_gpus_says_what_to_install(model: Path) -> None:
    assert backend_names() == ("CPU",)
    for layers in (ALL_LAYERS, 1):
        with pytest.raises(
            InvalidConfigError, match=r"gpu_layers must be 0 .* without a GPU backend"
        ) as caught:
            LlamaModel(model, offload=Offload(layers))
        assert "CUDA, Vulkan or Metal (docs/gpu.md)" in (caught.value.remedy or "")
    LlamaModel(model, offload=Offload(ALL_LAYERS), vocab_only=True).close()  # a tokenizer has no layers


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"gpu_layers": -2}, "gpu_layers must be an int >= -1; got -2"),
        ({"gpu_layers": True}, "gpu_layers must be an int"),
        ({"gpu_layers": 1, "main_gpu": -1}, "main_gpu must be an int >= 0; got -1"),
        ({"main_gpu": 0}, "main_gpu must not be given without gpu_layers; got 0"),
        ({"tensor_split": (1.0,)}, "tensor_split must not be given without gpu_layers"),
        (
            {"gpu_layers": 1, "main_gpu": 0, "tensor_split": (1,)},
            "main_gpu must not be given with tensor_split",
        ),
        ({"gpu_layers": 1, "tensor_split": (0, 0)}, "tensor_split must have a proportion > 0"),
        ({"gpu_layers": 1, "tensor_split": (1, -1)}, "tensor_split must be a finite number >= 0; got -1"),
        ({"gpu_layers": 1, "tensor_split": (float("inf"),)}, "tensor_split must be a finite number"),
        ({"gpu_layers": 1, "tensor_split": "1,1"}, "tensor_split must be a sequence of numbers"),
    ],
)
def test_invalid_settings_name_the_field(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidConfigError, match=match):
        Offload(**fields)


# -- quantised KV


@pytest.mark.parametrize(
    ("kv_type", "size"), [("f32", "0.50"), ("f16", "0.25"), ("q8_0", "0.13"), ("q4_0", "0.07")]
)
def test_the_type_of_the_kv_reaches_llama_cpp(model: Path, kv_type: str, size: str) -> None:
    with (
        captured_log() as log,
        LlamaModel(model) as loaded,
        LlamaTarget(loaded, ContextSettings(256, threads=1, max_width=1, kv_type=kv_type)),
    ):
        (line,) = (line for line in log if "llama_kv_cache: size" in line)
    assert f"K ({kv_type})" in line
    assert f"V ({kv_type})" in line
    assert f"size =    {size} MiB" in line


def test_quantised_kv_needs_flash_attention() -> None:
    with pytest.raises(InvalidConfigError, match="flash_attention must not be false with kv_type q4_0"):
        ContextSettings(kv_type="q4_0", flash_attention=False)


def test_heads_that_blocks_do_not_divide_are_named(tiny_model: Path) -> None:
    """Its heads are 16 wide, a block has 32 values."""
    settings = ContextSettings(256, threads=1, max_width=8, kv_type="q8_0")
    with (
        LlamaModel(tiny_model) as loaded,
        pytest.raises(ModelError, match=r"block size 32 does not divide n_embd_head_k=16.*kv_type f16"),
    ):
        LlamaContext(loaded, settings)


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
def test_drafts_are_exact_with_quantised_kv(model: Path, kv_type: str) -> None:
    settings = ContextSettings(256, slots=2, threads=1, max_width=8, kv_type=kv_type)
    config = DriverConfig(policy=Policy.FIRST_MATCH, min_match_tokens=1)
    with LlamaTarget(model, settings) as target:
        assert target.settings.flash_attention is True
        prompt = target.model.tokenize("abcabcabcabc" * 4)
        result = generate(target, prompt, layers=[PromptLookupLayer()], config=config, max_tokens=60)
        assert result.stats.drafted > 0
        found = check_exactness(target, result)
    assert found.ok, found.describe()

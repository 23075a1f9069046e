"""Check of GPU offload on a real GPU, for `make gpu-smoke`: probe, exactness, a text with a draft worker.

    python tools/gpu_smoke.py MODEL [DRAFT]

Exit code 2 where llama.cpp has no GPU, 1 if a check failed.
"""

from __future__ import annotations

import subprocess
import sys

import suffixsvc_models as models
from suffixsvc_driver.decode.exactness import check_exactness
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer
from suffixsvc_driver.settings.driver_config import DriverConfig, Policy
from suffixsvc_driver.targets.llama.binding import build_name
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.llama.devices import backend_names, gpu_devices
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.llama.offload import ALL_LAYERS, Offload
from suffixsvc_driver.targets.single import LlamaTarget

TEXT = "def area(width, height):\n    return width * height\n\n\n" * 3
TOKENS = 96
#: of the exactness checks: 3 % of fewer are a handful of tokens, too few to judge a share by
CHECKED_TOKENS = 480
#: first-match drafts at any cost: many steps of different widths
DRAFTING = DriverConfig(policy=Policy.FIRST_MATCH)


def main() -> int:
    model, draft = (sys.argv[1:] * 2)[:2]
    gpus = gpu_devices()
    if not gpus:
        print(
            f"gpu-smoke: llama.cpp has no GPU here; its backends: {', '.join(backend_names())} (docs/gpu.md)"
        )
        return 2
    print(build_name())
    for index, gpu in enumerate(gpus):
        print(f"GPU {index}: {gpu}, {gpu.memory_free >> 20} of {gpu.memory_total >> 20} MiB free", flush=True)
    failed = [name for name, passed in checks(model, draft) if not passed]
    print(f"gpu-smoke: failed: {', '.join(failed)}" if failed else "gpu-smoke: all checks passed")
    return 1 if failed else 0


def checks(model: str, draft: str) -> list[tuple[str, bool]]:
    """Run every check, and print what it found; return their names and whether they passed."""
    offload = ["--gpu-layers", "all"]
    probe = ["probe", model, "--draft", draft, *offload, "--rounds", "2", "--max-width", "32"]
    text = ["generate", model, TEXT, "--raw", "--draft", draft, *offload, "--max-tokens", str(TOKENS)]
    return [
        ("probe", run_verb(probe)),
        ("exactness", is_exact(model, "f16")),
        ("exactness with quantised KV", is_exact(model, "q8_0")),
        ("generate", run_verb([*text, "--no-measure"])),
    ]


def run_verb(arguments: list[str]) -> bool:
    print(f"\nsuffixsvc {' '.join(arguments[:2])} ...", flush=True)
    command = [sys.executable, "-m", "suffixsvc_cli", *arguments]
    return subprocess.run(command, check=False).returncode == 0  # noqa: S603  # this interpreter


def is_exact(name: str, kv_type: str) -> bool:
    """Whether drafts have changed nothing but near-ties (docs/architecture.md, exactness)."""
    settings = ContextSettings(context_size=1024, slots=2, kv_type=kv_type)
    with (
        LlamaModel(models.resolve(name), offload=Offload(ALL_LAYERS)) as model,
        LlamaTarget(model, settings) as target,
    ):
        prompt, layers = model.tokenize(TEXT), [PromptLookupLayer()]
        result = generate(target, prompt, layers=layers, config=DRAFTING, max_tokens=CHECKED_TOKENS)
        found, sent = check_exactness(target, result), result.stats.drafted
        print(f"\nexactness, KV {kv_type}, on {model.device}: {sent} tokens drafted; {found.describe()}")
        return found.ok and sent > 0


if __name__ == "__main__":
    sys.exit(main())

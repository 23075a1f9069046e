"""Loads a model with several settings on simulated GPUs, and prints what llama.cpp logs and computes.

offload_child.py MODEL GPUS [full]    full: the GPUs have no free memory

Reads cases as JSON from stdin: [[fields of Offload, fields of ContextSettings], ..], and prints a list of one
object for each: "log", "device", "key" (name of the cost curve's file), "flash", "text" (16 greedy tokens),
or "error" and its class.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from suffixsvc.errors import SuffixError
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.profile.target_cost import key_of
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.llama.offload import Offload
from suffixsvc_driver.targets.single import LlamaTarget
from support.simulated_gpu import captured_log, register


def run(path: str, offload: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    given = ContextSettings(context_size=256, threads=1, max_width=8, **settings)
    with captured_log() as log, LlamaModel(path, offload=Offload(**offload)) as model:
        with LlamaTarget(model, given) as target:
            text = generate(target, model.tokenize("a text"), max_tokens=16).token_ids
            key, flash = key_of(target).file_name(), target.settings.flash_attention
        return {"log": log, "device": model.device, "key": key, "flash": flash, "text": list(text)}


def main() -> None:
    path, count, *full = sys.argv[1:]
    register(int(count), memory=not full)
    results = []
    for offload, settings in json.load(sys.stdin):
        try:
            results.append(run(path, offload, settings))
        except SuffixError as error:
            results.append({"error": str(error), "class": type(error).__name__})
    print(json.dumps(results))


main()

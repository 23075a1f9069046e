"""Commands that reproduce a benchmark run, from the options stored in its JSON."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

__all__ = [
    "build_command",
    "decode_command",
    "index_command",
    "replay_command",
    "rpc_command",
    "segment_command",
]

_REPLAY: Final = {
    "methods": "--method",
    "costs": "--cost",
    "agents": "--agent",
    "k": "--max-draft",
    "max_tokens": "--max-tokens",
    "max_calls": "--max-calls",
    "prompt_tokens": "--prompt-tokens",
    "train": "--train",
    "seed": "--seed",
}
_REPLAY_FILES: Final = {
    "tokenizer": "--tokenizer",
    "cost_curve": "--cost-curve",
    "starting_weights": "--starting-weights",
    "train_logs": "--train-log",
}


def replay_command(request: Mapping[str, Any]) -> str:
    """``bench replay`` with the stored options. Files appear by name only: their folders are local to the
    machine.
    """
    words = ["suffixsvc", "bench", "replay", *(Path(log).name for log in request["logs"])]
    for name, option in _REPLAY_FILES.items():
        for value in _as_list(request[name]):
            words += [option, Path(value).name]
    for name, option in _REPLAY.items():
        for value in _as_list(request[name]):
            words += [option, f"{value:g}" if isinstance(value, float) else str(value)]
    words += ["--start", "warm"] * bool(request["warm"]) + ["--shuffle"] * bool(request["shuffle"])
    if request["sweep"] is not None:
        words.append("--sweep" if request["sweep"] else "--no-sweep")
    return shlex.join([*words, "--json"])


def index_command(results: Mapping[str, Any]) -> str:
    """``bench index`` with the stored options."""
    options = results["options"]
    words = ["suffixsvc", "bench", "index", "--sizes", _sizes(options["sizes"])]
    for kind in options["kinds"]:
        words += ["--kind", kind]
    if options["log"]:
        words += ["--log", Path(options["log"]).name]
    words += [] if options["peer"] else ["--no-peer"]
    words += [] if options["restart"] else ["--no-restart"]
    words += ["--output-tokens", str(options["output_tokens"]), "--seed", str(options["seed"]), "--json"]
    return shlex.join(words)


_BUILD: Final = {
    "sections": "--section",
    "tokens": "--tokens",
    "memory_tokens": "--memory-tokens",
    "memories": "--memory",
    "records": "--records",
    "logs": "--logs",
    "tokenizers": "--tokenizer",
    "text": "--text",
    "text_bytes": "--text-size",
    "llama_bin": "--llama-bin",
    "target": "--target",
    "rounds": "--rounds",
    "seed": "--seed",
}


def build_command(results: Mapping[str, Any]) -> str:
    """``bench build`` with the stored options."""
    words = ["suffixsvc", "bench", "build"]
    for name, option in _BUILD.items():
        for value in _as_list(results["options"][name]):
            words += [option, str(value)]
    return shlex.join([*words, "--json"])


_DECODE: Final = {
    "target": "--target",
    "draft": "--draft",
    "workloads": "--workload",
    "log": "--log",
    "files": "--file",
    "calls": "--calls",
    "rounds": "--rounds",
    "policies": "--policy",
    "layers": "--layers",
    "threads": "--threads",
    "context": "--context",
    "max_width": "--max-width",
    "max_tokens": "--max-tokens",
    "llama_bin": "--llama-bin",
    "llama_modes": "--llama-mode",
    "prices": "--price-with",
}


def decode_command(results: Mapping[str, Any]) -> str:
    """``bench decode`` with the stored options. Files appear by name only."""
    options = results["options"]
    words = ["suffixsvc", "bench", "decode"]
    for name, option in _DECODE.items():
        for value in _as_list(options.get(name)):
            words += [option, str(value)]
    for name, option in (("ks", "--k"), ("temperatures", "--temperature"), ("experts", "--experts")):
        if options.get(name):
            words += [option, ",".join(f"{value:g}" for value in options[name])]
    words += ["--llama-programs"] * bool(options["llama_programs"])
    return shlex.join([*words, "--json"])


def segment_command(results: Mapping[str, Any]) -> str:
    """``bench segment`` with the stored options."""
    sizes = _sizes([at["tokens"] for at in results["sizes"]])
    return shlex.join(
        ["suffixsvc", "bench", "segment", "--sizes", sizes, "--seed", str(results["seed"]), "--json"]
    )


def rpc_command(report: Mapping[str, Any]) -> str:
    """``bench rpc`` with the stored options."""
    options = report["options"]
    words = ["suffixsvc", "bench", "rpc"]
    for name, option in (("transports", "--transport"), ("kinds", "--kind"), ("batches", "--batch")):
        for value in options[name]:
            words += [option, str(value)]
    words += ["--calls", str(options["calls"]), "--rounds", str(options["rounds"])]
    return shlex.join([*words, "--seed", str(options["seed"]), "--json"])


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _sizes(sizes: list[int]) -> str:
    return ",".join(f"{n // 1_000_000}M" if n % 1_000_000 == 0 else str(n) for n in sizes)

"""Example of the llama-cpp-python adapter with a real model: smollm2-135m, downloaded once (98 MB).

The model generates a function, the same function again, and a similar one: first without drafts, then with.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import llama_cpp

import suffixsvc_models as models
from suffixsvc.errors import ModelNotFoundError
from suffixsvc_adapters.llama_cpp_python import attach

_PROMPTS = ("def area_of_circle(r):\n", "def area_of_circle(r):\n", "def area_of_square(a):\n")
_TOKENS = 48


def main() -> None:
    """Generate for each prompt without and with drafts, and print the acceptance."""
    from suffixsvc import SuffixCache  # noqa: PLC0415 - the engine, which the package does not load

    path = _model()
    # logits_all: without it llama-cpp-python cannot verify drafts (docs/adapters.md)
    llama = llama_cpp.Llama(
        str(path), n_ctx=512, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False
    )
    print(f"{path.name}, greedy, {_TOKENS} tokens each; `suffixsvc probe` says whether drafting pays\n")
    alone = [_write(llama, prompt) for prompt in _PROMPTS]
    with SuffixCache() as cache, attach(llama, cache, "example") as drafter:
        for prompt, plain in zip(_PROMPTS, alone, strict=True):
            before = drafter.stats
            text = _write(llama, prompt)
            stats = drafter.stats
            accepted, drafted = stats.accepted - before.accepted, stats.drafted - before.drafted
            compared = (
                "the same text" if text == plain else "a near-tie fell the other way (docs/adapters.md)"
            )
            print(f"{prompt!r}: {len(text)} tokens in {stats.asked - before.asked} steps, ", end="")
            print(f"{accepted} of {drafted} drafted accepted; {compared}")


def _model() -> Path:
    try:
        return models.path("smollm2-135m")
    except ModelNotFoundError:
        print("downloading smollm2-135m (98 MB, once) ...", flush=True)
        return models.get("smollm2-135m")


def _write(llama: Any, prompt: str) -> list[int]:
    text: list[int] = []
    for token in llama.generate(llama.tokenize(prompt.encode(), add_bos=False), temp=0.0):
        text.append(token)
        if len(text) == _TOKENS or token == llama.token_eos():
            break
    return text


if __name__ == "__main__":
    main()

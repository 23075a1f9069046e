"""Flash attention or not, where nobody said: found out by trying.

On a CPU flash attention computes the attention of each verified token by itself. That has two sides:

* where the other arithmetic does not depend on a batch's width either, drafts change no bit of the logits
  (with several threads behind some hundred tokens they do: llama.cpp then splits the text of a plain step
  among the threads);
* steps of 16 to 32 tokens take 20 to 35 % longer behind 1000 to 1500 tokens than without it. A plain step
  does not: within 5 %, either way.

So it stays where it keeps a model's rounding, and goes where the batch's width shows in it anyhow. SmolLM2 at
Q4_1 is of the first kind (0 flips in 601 tokens with it, 25 in 594 without), Qwen2.5-Coder-1.5B at Q4_K_M of
the other (4 in 288, 2 in 288).
"""

from __future__ import annotations

import weakref
from typing import Final

import numpy as np
import structlog

from suffixsvc.errors import ModelError
from suffixsvc.types import FloatArray
from suffixsvc_driver.targets.llama_context import ContextSettings, LlamaContext, Part
from suffixsvc_driver.targets.llama_model import LlamaModel

__all__ = ["choose_flash_attention"]

_log = structlog.get_logger(__name__)
#: one wide step and so many plain ones; wide enough to be computed by other kernels
_TOKENS: Final = (1, 2, 3, 4)

_found: weakref.WeakKeyDictionary[LlamaModel, bool] = weakref.WeakKeyDictionary()


def choose_flash_attention(model: LlamaModel, settings: ContextSettings) -> bool | None:
    """What ``settings`` say; else what suits the model, which takes about seven plain steps once a loaded
    model. None, llama.cpp's own choice, where nothing is verified."""
    if settings.flash_attention is not None or settings.max_width == 1:
        return settings.flash_attention
    if model not in _found:
        try:
            _found[model] = _width_does_not_show(model, settings.threads)
        except ModelError as err:
            _log.warning("flash attention could not be tried; llama.cpp chooses", reason=str(err))
            return None
    return _found[model]


def _width_does_not_show(model: LlamaModel, threads: int) -> bool:
    """With flash attention the same tokens give the same logits, bit for bit, at once and one by one."""
    settings = ContextSettings(
        context_size=256,
        slots=2,
        threads=threads,
        batch_size=16,
        max_width=len(_TOKENS),
        flash_attention=True,
        snapshots=False,
    )
    context = LlamaContext(model, settings)
    try:
        context.decode_part(Part(0, 0, _TOKENS))
        together: list[FloatArray] = [context.logits(i).copy() for i in range(len(_TOKENS))]
        for i, token in enumerate(_TOKENS):
            context.decode_part(Part(1, i, (token,)))
            if not np.array_equal(context.logits(0), together[i]):
                return False
        return True
    finally:
        context.close()

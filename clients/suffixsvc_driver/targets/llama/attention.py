"""Choice of flash attention by a trial, if the settings do not decide it.

On a CPU flash attention computes the attention of each verified token separately. Consequences:

* If no other operation depends on a batch's width, drafts change no bit of the logits. (With several threads
  after some hundred tokens they do: llama.cpp then splits the text of a plain step among the threads.)
* Steps of 16 to 32 tokens after 1000 to 1500 tokens take 20 to 35 % longer than without it; plain steps take
  the same time within 5 %.

So it is used if it makes a model's rounding independent of the width, and not used if the rounding depends on
the width anyway. SmolLM2 at Q4_1 is of the first kind (0 flips in 601 tokens with it, 25 in 594 without),
Qwen2.5-Coder-1.5B at Q4_K_M of the second (4 in 288, 2 in 288).

A quantised KV cache requires it, and so does KV memory that several generations share: attention without it
reads the cells of all sequences. Qwen2.5-Coder-0.5B after 600 tokens: 6,144 cells of others make a plain step
2.2 times slower without it, 1.17 with it (1.14 with 13,312). The order in which it sums does not depend on
where a text's cells are, as long as they are in the order of the text and one thread computes them. Not for
KV of type f32, whose kernel is slow: a tiny model after 1,400 tokens, 3.1 ms a step with it, 0.33 without;
with f16 0.35 and 0.27.

With layers on a GPU llama.cpp chooses if the rounding depends on the width: the costs above are those of a
CPU.
"""

from __future__ import annotations

import weakref
from typing import Final

import numpy as np
import structlog

from suffixsvc.errors import ModelError
from suffixsvc.types import FloatArray
from suffixsvc_driver.targets.llama.context import ContextSettings, LlamaContext, Part
from suffixsvc_driver.targets.llama.context_settings import QUANTIZED_KV
from suffixsvc_driver.targets.llama.model import LlamaModel

_log = structlog.get_logger(__name__)
#: tokens of one wide step, and of as many plain ones; wide enough that llama.cpp uses other kernels
_TOKENS: Final = (1, 2, 3, 4)

_found: weakref.WeakKeyDictionary[LlamaModel, bool] = weakref.WeakKeyDictionary()


def choose_flash_attention(
    model: LlamaModel, settings: ContextSettings, *, shared: bool = False
) -> bool | None:
    """Return whether to use flash attention: as set, else by a trial of about seven plain steps, once per
    loaded model. None (llama.cpp's own choice) if the context verifies no drafts, or if layers are on a GPU
    and the rounding depends on the width.

    Args:
        model: the loaded model.
        settings: of the context.
        shared: several generations share its KV memory.
    """
    if settings.flash_attention is None and settings.kv_type in QUANTIZED_KV:
        return True
    if settings.flash_attention is not None or settings.max_width == 1:
        return settings.flash_attention
    if shared and settings.kv_type != "f32" and not model.offload.gpu_layers:
        return True
    if model not in _found:
        try:
            _found[model] = _is_width_independent(model, settings.threads)
        except ModelError as err:
            _log.warning("the trial of flash attention failed; llama.cpp chooses", reason=str(err))
            return None
    return True if _found[model] else None if model.offload.gpu_layers else False


def _is_width_independent(model: LlamaModel, threads: int) -> bool:
    """Whether flash attention gives the same logits, bit for bit, for tokens in one batch and one by one."""
    settings = ContextSettings(
        context_size=256,
        slots=2,
        threads=threads,
        batch_size=16,
        max_width=len(_TOKENS),
        flash_attention=True,
        snapshots=False,
    )
    with LlamaContext(model, settings) as context:
        context.decode_part(Part(0, 0, _TOKENS))
        together: list[FloatArray] = [context.logits(i).copy() for i in range(len(_TOKENS))]
        for i, token in enumerate(_TOKENS):
            context.decode_part(Part(1, i, (token,)))
            if not np.array_equal(context.logits(0), together[i]):
                return False
    return True

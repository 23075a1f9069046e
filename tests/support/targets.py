"""Settings of targets for tests."""

from __future__ import annotations

from suffixsvc_driver.targets.llama_context import ContextSettings

#: what makes arithmetic independent of the batch's width
WIDTH_INDEPENDENT = ContextSettings(
    context_size=512, slots=3, threads=1, max_width=32, flash_attention=False, kv_type="f32"
)

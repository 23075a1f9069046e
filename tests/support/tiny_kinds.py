"""Tiny random models of the kinds whose states differ: mixture of experts, sliding window, recurrent, hybrid.

Small enough to run in milliseconds, and each through the code of llama.cpp that the real ones run through.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from support.tiny_gguf import TinyWriter, write_tiny_llama

__all__ = ["KINDS", "WINDOW", "write_tiny_gemma", "write_tiny_lfm2", "write_tiny_mamba", "write_tiny_moe"]

_WIDTH: Final = 32
_HEADS: Final = 2
_SHARPNESS: Final = 4.0
#: tokens that a layer with a sliding window sees
WINDOW: Final = 24


def write_tiny_moe(
    path: Path, *, seed: int = 0, experts: int = 4, used: int | list[int] = 2, layers: int = 2
) -> Path:
    """A qwen3moe. ``used`` as a list is stored as an array, one number a layer."""
    tiny = TinyWriter(path, "qwen3moe", seed, _WIDTH, layers)
    _attention_header(tiny)
    tiny.gguf.add_feed_forward_length(2 * _WIDTH)
    tiny.gguf.add_expert_count(experts)
    if isinstance(used, int):
        tiny.gguf.add_expert_used_count(used)
    else:
        tiny.gguf.add_array("qwen3moe.expert_used_count", used)
    tiny.gguf.add_expert_feed_forward_length(_WIDTH)
    tiny.normal("token_embd.weight", tiny.size, _WIDTH, scale=1.0)
    for i in range(layers):
        block = f"blk.{i}"
        tiny.ones(f"{block}.attn_norm.weight", _WIDTH)
        tiny.ones(f"{block}.ffn_norm.weight", _WIDTH)
        tiny.attention(block, _HEADS, qk_norm=True)
        tiny.normal(f"{block}.ffn_gate_inp.weight", experts, _WIDTH, scale=1.0)
        for part in ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"):
            tiny.normal(f"{block}.{part}.weight", experts, _WIDTH, _WIDTH, scale=1.0 / _WIDTH**0.5)
    return _closed(tiny)


def write_tiny_gemma(path: Path, *, seed: int = 0, layers: int = 3) -> Path:
    """A gemma3: every layer but the last sees the last :data:`WINDOW` tokens only."""
    tiny = TinyWriter(path, "gemma3", seed, _WIDTH, layers)
    _attention_header(tiny)
    tiny.gguf.add_feed_forward_length(2 * _WIDTH)
    tiny.gguf.add_sliding_window(WINDOW)
    tiny.gguf.add_sliding_window_pattern([True] * (layers - 1) + [False])
    tiny.normal("token_embd.weight", tiny.size, _WIDTH, scale=1.0 / _WIDTH**0.5)
    for i in range(layers):
        block = f"blk.{i}"
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            tiny.ones(f"{block}.{norm}.weight", _WIDTH)
        tiny.attention(block, _HEADS, qk_norm=True)
        tiny.feed_forward(block, 2 * _WIDTH)
    return _closed(tiny)


def write_tiny_mamba(path: Path, *, seed: int = 0, layers: int = 2) -> Path:
    """A mamba: no attention at all; its state cannot be cut."""
    tiny = TinyWriter(path, "mamba", seed, _WIDTH, layers)
    inner, state, rank, kernel = 2 * _WIDTH, 8, 4, 4
    tiny.gguf.add_feed_forward_length(0)
    tiny.gguf.add_head_count(0)
    tiny.gguf.add_ssm_conv_kernel(kernel)
    tiny.gguf.add_ssm_inner_size(inner)
    tiny.gguf.add_ssm_state_size(state)
    tiny.gguf.add_ssm_time_step_rank(rank)
    tiny.normal("token_embd.weight", tiny.size, _WIDTH, scale=1.0)
    for i in range(layers):
        block = f"blk.{i}"
        tiny.ones(f"{block}.attn_norm.weight", _WIDTH)
        tiny.normal(f"{block}.ssm_in.weight", 2 * inner, _WIDTH, scale=1.0 / _WIDTH**0.5)
        tiny.normal(f"{block}.ssm_conv1d.weight", inner, kernel, scale=0.5)
        tiny.normal(f"{block}.ssm_conv1d.bias", inner, scale=0.1)
        tiny.normal(f"{block}.ssm_x.weight", rank + 2 * state, inner, scale=1.0 / inner**0.5)
        tiny.normal(f"{block}.ssm_dt.weight", inner, rank, scale=1.0 / rank**0.5)
        tiny.normal(f"{block}.ssm_dt.bias", inner, scale=0.5)
        # the state decays: the more negative, the faster
        decay = -np.broadcast_to(np.arange(1, state + 1, dtype=np.float32), (inner, state))
        tiny.gguf.add_tensor(f"{block}.ssm_a", np.ascontiguousarray(decay))
        tiny.ones(f"{block}.ssm_d", inner)
        tiny.normal(f"{block}.ssm_out.weight", _WIDTH, inner, scale=1.0 / inner**0.5)
    return _closed(tiny)


def write_tiny_lfm2(path: Path, *, seed: int = 0) -> Path:
    """An lfm2: short convolutions, whose state is recurrent, around one layer of attention."""
    layers = 3
    tiny = TinyWriter(path, "lfm2", seed, _WIDTH, layers)
    _attention_header(tiny, kv_heads=[0, _HEADS, 0])
    tiny.gguf.add_feed_forward_length(2 * _WIDTH)
    tiny.gguf.add_shortconv_l_cache(3)
    tiny.normal("token_embd.weight", tiny.size, _WIDTH, scale=1.0)
    tiny.ones("token_embd_norm.weight", _WIDTH)
    for i in range(layers):
        block = f"blk.{i}"
        tiny.ones(f"{block}.attn_norm.weight", _WIDTH)
        tiny.ones(f"{block}.ffn_norm.weight", _WIDTH)
        tiny.feed_forward(block, 2 * _WIDTH)
        if i == 1:
            tiny.attention(block, _HEADS, qk_norm=True)
            continue
        tiny.normal(f"{block}.shortconv.conv.weight", _WIDTH, 3, scale=0.7)
        tiny.normal(f"{block}.shortconv.in_proj.weight", 3 * _WIDTH, _WIDTH, scale=1.0 / _WIDTH**0.5)
        tiny.normal(f"{block}.shortconv.out_proj.weight", _WIDTH, _WIDTH, scale=1.0 / _WIDTH**0.5)
    tiny.normal("output.weight", tiny.size, _WIDTH, scale=_SHARPNESS / _WIDTH**0.5)
    return tiny.close()


def _attention_header(tiny: TinyWriter, kv_heads: int | list[int] = _HEADS) -> None:
    tiny.gguf.add_head_count(_HEADS)
    tiny.gguf.add_head_count_kv(kv_heads)
    tiny.gguf.add_key_length(16)
    tiny.gguf.add_value_length(16)
    tiny.gguf.add_rope_dimension_count(16)


def _closed(tiny: TinyWriter) -> Path:
    tiny.ones("output_norm.weight", _WIDTH)
    tiny.normal("output.weight", tiny.size, _WIDTH, scale=_SHARPNESS / _WIDTH**0.5)
    return tiny.close()


#: name -> writes one to a path
KINDS: Final[dict[str, Callable[..., Path]]] = {
    "llama": write_tiny_llama,
    "moe": write_tiny_moe,
    "gemma": write_tiny_gemma,
    "mamba": write_tiny_mamba,
    "lfm2": write_tiny_lfm2,
}

"""Adapters with which other engines draft from the suffix cache.

    tracking           sessions for engines that have none: identifies sequences by their tokens
    backends           settings from an engine's configuration, and the cache that they name
    llama_cpp_python   llama-cpp-python: a LlamaDraftModel
    huggingface        transformers: a CandidateGenerator for ``generate(custom_generate=...)``
    vllm_proposer      vLLM: a proposer for ``method: custom_class``
    sglang_ngram       SGLang: a plugin that replaces the corpus of its NGRAM algorithm
    trtllm_endpoint    TensorRT-LLM: an HTTP endpoint for its APIDrafter
    examples/          two adapters with a real engine: ``python -m suffixsvc_adapters.examples.NAME``

Importing this package loads no engine; an adapter's module loads its own. docs/adapters.md describes the
configuration of each engine and the limits.
"""

from suffixsvc_adapters.tracking.session_tracker import SessionTracker
from suffixsvc_adapters.tracking.tracker_types import DraftRequest, TrackerConfig, TrackerStats

__all__ = ["DraftRequest", "SessionTracker", "TrackerConfig", "TrackerStats"]

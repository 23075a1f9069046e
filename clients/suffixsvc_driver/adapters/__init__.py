"""Adapters: other engines draft from the suffix cache.

    session_tracker    sessions for engines that have none: recognises sequences by their tokens
    backends           what an engine's configuration says of the cache, and the cache it means
    llama_cpp_python   llama-cpp-python: a LlamaDraftModel
    huggingface        transformers: a CandidateGenerator behind ``generate(custom_generate=...)``
    vllm_proposer      vLLM: a proposer for ``method: custom_class``
    sglang_ngram       SGLang: what its NGRAM algorithm drafts from, as a plugin
    trtllm_endpoint    TensorRT-LLM: the HTTP endpoint that its APIDrafter asks
    examples/          each of them at work: ``python -m suffixsvc_driver.adapters.examples.NAME``

Importing this package loads no engine; an adapter's module loads its own. docs/adapters.md says what to write
into each engine's configuration, and what is lost.
"""

from suffixsvc_driver.adapters.session_tracker import SessionTracker
from suffixsvc_driver.adapters.tracker_types import Asked, TrackerConfig, TrackerStats

__all__ = ["Asked", "SessionTracker", "TrackerConfig", "TrackerStats"]

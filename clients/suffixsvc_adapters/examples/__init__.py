"""Adapters with a real engine: ``python -m suffixsvc_adapters.examples.NAME``.

llama_cpp_python   a real model (98 MB, downloaded once) answers the same prompt twice
huggingface        a tiny random model of transformers, on CPU
"""

"""Each adapter at work: ``python -m suffixsvc_driver.adapters.examples.NAME``.

    llama_cpp_python   a real model (98 MB, downloaded once) answers the same question twice
    huggingface        a tiny random model of transformers, on CPU
    vllm_proposer      the calls that vLLM makes, on a recorded log
    sglang_ngram       the calls that SGLang makes, on a recorded log
    trtllm_endpoint    the requests that TensorRT-LLM sends, on a recorded log, over HTTP

The last three run no model: the log says what one wrote, and the engine's part is played by a few lines that
keep its buffers and call the adapter in its order.
"""

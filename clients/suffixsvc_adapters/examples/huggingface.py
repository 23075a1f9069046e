"""Example of the transformers adapter: generate() with and without the cache, on CPU.

The model is tiny and random (no download): its output is noise, but the same noise for the same prompt.
Any causal language model can replace it: ``AutoModelForCausalLM.from_pretrained(...)``.
"""

from __future__ import annotations

import torch
import transformers

from suffixsvc_adapters.huggingface import SuffixDecoding

_VOCABULARY, _TOKENS = 256, 80
_PROMPTS = ("How many orders were shipped?", "How many orders were late?", "How many orders were shipped?")


def main() -> None:
    """Generate for each prompt with and without drafts, and print the acceptance."""
    from suffixsvc import SuffixCache  # noqa: PLC0415 - the engine, which the package does not load

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.2,
        eos_token_id=None,
        pad_token_id=0,
    )
    # float64: rounding in batches of another width never changes a token, so the outputs can be compared
    model = transformers.LlamaForCausalLM(config).double().eval()
    print(f"transformers {transformers.__version__}, a random model, greedy, {_TOKENS} tokens each\n")
    with SuffixCache() as cache, SuffixDecoding(cache.namespace("example")) as decoding:
        for prompt in _PROMPTS:
            ids = torch.tensor([list(prompt.encode())])
            before = decoding.stats
            written = model.generate(ids, custom_generate=decoding, max_new_tokens=_TOKENS, do_sample=False)
            stats = decoding.stats
            alone = model.generate(ids, max_new_tokens=_TOKENS, do_sample=False)
            accepted, drafted = stats.accepted - before.accepted, stats.drafted - before.drafted
            compared = "the same text as alone" if torch.equal(written, alone) else "ANOTHER TEXT than alone"
            print(f"{prompt!r}: {_TOKENS} tokens in {stats.asked - before.asked} steps, ", end="")
            print(f"{accepted} of {drafted} drafted accepted; {compared}")


if __name__ == "__main__":
    main()

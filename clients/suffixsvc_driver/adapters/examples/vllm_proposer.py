"""The vLLM adapter on a recorded log: what its drafts would have been worth.

No vLLM runs here: :mod:`vllm_rows` keeps its buffers and calls in its order. ``make adapters-vllm`` runs one.
"""

from __future__ import annotations

from types import SimpleNamespace

from suffixsvc_driver.adapters.examples.recorded_calls import calls_from_arguments
from suffixsvc_driver.adapters.examples.vllm_rows import END_OF_SEQUENCE, Rows
from suffixsvc_driver.adapters.vllm_proposer import SuffixProposer

_ROWS, _LENGTH, _VOCABULARY = 4, 8192, 151_936


def main() -> None:
    calls = calls_from_arguments(
        "vLLM's calls to SuffixProposer: 4 rows at a time, 16 tokens a draft at most."
    )
    # what of vLLM's configuration the proposer reads
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=16),
        model_config=SimpleNamespace(
            max_model_len=_LENGTH,
            get_vocab_size=lambda: _VOCABULARY,
            try_get_generation_config=lambda: {"eos_token_id": END_OF_SEQUENCE},
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=_ROWS),
        parallel_config=SimpleNamespace(rank=0, tensor_parallel_size=1, prefill_context_parallel_size=1),
        additional_config={"suffixsvc": {"namespace": "example"}},
    )
    proposer = SuffixProposer(config)
    for title in ("an empty cache", "the same calls again"):
        rows = Rows(_ROWS, _LENGTH)
        rows.write(calls, proposer)
        print(f"{title}: {rows.rates}")
    proposer.close()
    print(f"{proposer.stats.opened} sessions, {proposer.stats.failures} failures")


if __name__ == "__main__":
    main()

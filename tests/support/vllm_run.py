"""A real vLLM in this process, drafting from a folder: what it returned, as JSON on the last line.

Run as a program: vllm_run.py MODEL FOLDER. The engine core stays in this process, so that the proposer can be
looked at. Needs .venv-adapters-vllm.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

QUESTIONS = [
    "What is the capital of France?",
    "Name three colours.",
    "Count from one to ten.",
    "What is 2+2?",
    "Say hello.",
    "List the days of the week.",
    "Spell the word cat.",
    "Repeat: apple banana apple banana.",
]
DRAFTED = 8
ROWS = 4

#: small, quiet, and with one thread: the machine may have other work
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}


def speculative_config() -> dict[str, Any]:
    return {
        "method": "custom_class",
        "num_speculative_tokens": DRAFTED,
        "model": "suffixsvc_adapters.vllm_proposer.SuffixProposer",
    }


def additional_config(folder: str) -> dict[str, Any]:
    return {"suffixsvc": {"data": folder, "namespace": "vllm"}}


def main(model: str, folder: str) -> None:
    from vllm import LLM, SamplingParams  # reads the environment when it is imported
    from vllm.sampling_params import RepetitionDetectionParams

    llm = LLM(
        model,
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=ROWS,
        speculative_config=speculative_config(),
        additional_config=additional_config(folder),
    )
    greedy = {"temperature": 0.0, "max_tokens": 64}
    repetition = RepetitionDetectionParams(max_pattern_size=16, min_pattern_size=1, min_count=2)
    returned: dict[str, list[dict[str, Any]]] = {}
    for name, params in {
        "end-of-sequence token": SamplingParams(**greedy),
        "max_tokens": SamplingParams(temperature=0.0, max_tokens=13),
        "ignore_eos": SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True),
        "stop token": SamplingParams(**greedy, stop_token_ids=[28, 30]),
        "stop string": SamplingParams(**greedy, stop=[".", " is"]),
        "stop string, included": SamplingParams(**greedy, stop=["\n"], include_stop_str_in_output=True),
        "repetition": SamplingParams(**greedy, ignore_eos=True, repetition_detection=repetition),
        "samples": SamplingParams(n=2, temperature=0.7, seed=1, max_tokens=24),
    }.items():
        returned[name] = []
        for _ in range(2):  # what the first round wrote is drafted in the second
            chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
            for answer in llm.chat(chats, params, use_tqdm=False):
                returned[name] += [
                    {"token_ids": list(output.token_ids), "reason": output.finish_reason}
                    for output in answer.outputs
                ]
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    stats = runner.drafter.stats
    runner.drafter.tracker.flush()
    before_the_end = stats.closed
    runner.drafter.close()
    print(
        json.dumps(
            {
                "returned": returned,
                "closed": before_the_end,
                "drafted": stats.drafted,
                "accepted": stats.accepted,
                "failures": runner.drafter.stats.failures,
            }
        )
    )


if __name__ == "__main__":
    os.environ.update(ENVIRONMENT, VLLM_ENABLE_V1_MULTIPROCESSING="0")
    main(sys.argv[1], sys.argv[2])

"""Usage and metrics of speculative decoding, as responses report them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from suffixsvc_driver.decode.generation import Result
from suffixsvc_driver.speculation.accounting import EVIDENCE


def usage_of(results: Sequence[Result], n: int, accepted: int = 0, rejected: int = 0) -> dict[str, Any]:
    """Return ``usage``: each prompt is counted once, each choice's tokens are.

    Args:
        results: of each choice, those of a prompt together.
        n: choices of each prompt.
        accepted: tokens of predictions that appeared in the choices.
        rejected: tokens of predictions that did not.
    """
    firsts = results[::n]
    prompt = sum(len(result.prompt_ids) for result in firsts)
    written = sum(len(result.token_ids) for result in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": sum(result.prefill.reused for result in firsts)},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": rejected,
        },
    }


def metrics_of(results: Iterable[Result]) -> dict[str, Any]:
    """Return ``metrics``, with the fields of vLLM and the emitted tokens by source.

    ``acceptance_histogram[k]`` is the number of steps with a draft of which k tokens were accepted.
    """
    histogram: Counter[int] = Counter()
    sources: Counter[str] = Counter()
    drafted = 0
    for result in results:
        sources.update(EVIDENCE[source] for source in result.sources)
        for step in result.steps:
            tokens = step.decision.drafted
            if tokens:
                drafted += tokens
                histogram[step.agreed] += 1
    steps = sum(histogram.values())
    accepted = sum(length * count for length, count in histogram.items())
    speculative = {
        "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "acceptance_histogram": [histogram[length] for length in range(max(histogram, default=-1) + 1)],
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "tokens_by_source": {name: sources[name] for name in dict.fromkeys(EVIDENCE.values())},
    }
    return {"speculative_decoding": speculative}

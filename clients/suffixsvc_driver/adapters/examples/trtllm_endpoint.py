"""The TensorRT-LLM endpoint on a recorded log, over HTTP: what its drafts would have been worth.

TensorRT-LLM itself needs a GPU and does not run here: :mod:`trtllm_drafter` sends what its APIDrafter sends.
"""

from __future__ import annotations

from suffixsvc_driver.adapters.backends import AdapterSettings, open_tracker
from suffixsvc_driver.adapters.examples.recorded_calls import calls_from_arguments
from suffixsvc_driver.adapters.examples.trtllm_drafter import Drafter
from suffixsvc_driver.adapters.trtllm_endpoint import TRTLLM_CONFIG, DraftEndpoint


def main() -> None:
    calls = calls_from_arguments("TensorRT-LLM's requests to the endpoint: one at a time, 8 tokens a draft.")
    tracker = open_tracker(AdapterSettings(namespace="example"), TRTLLM_CONFIG)
    with DraftEndpoint(tracker) as endpoint:
        for title in ("an empty cache", "the same calls again"):
            drafter = Drafter(endpoint.url)
            drafter.write(calls)
            print(f"{title}: {drafter.rates}")
    print(f"{tracker.stats.opened} sessions, {tracker.stats.failures} failures")


if __name__ == "__main__":
    main()

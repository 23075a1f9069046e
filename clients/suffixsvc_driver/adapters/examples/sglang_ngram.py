"""The SGLang adapter on a recorded log: what its trees would have been worth.

SGLang itself needs a GPU and does not run here: :mod:`sglang_batch` calls in its order.
"""

from __future__ import annotations

from suffixsvc_driver.adapters.examples.recorded_calls import calls_from_arguments
from suffixsvc_driver.adapters.examples.sglang_batch import NgramWorker
from suffixsvc_driver.adapters.sglang_ngram import after_worker_init


def main() -> None:
    calls = calls_from_arguments("SGLang's calls to SuffixCorpus: 4 requests at a time, trees of 12 tokens.")
    corpus = None
    for title in ("an empty cache", "the same calls again"):
        worker = NgramWorker()
        if corpus is None:
            after_worker_init(None, worker)  # what the plugin's hook does
            corpus = worker.ngram_corpus
        worker.ngram_corpus = corpus
        worker.write(calls)
        print(f"{title}: {worker.rates}")
    if corpus is not None:
        corpus.close()
        print(f"{corpus.stats.opened} sessions, {corpus.stats.failures} failures")


if __name__ == "__main__":
    main()

"""``suffixsvc bench train``: starting weights from recorded logs."""

from __future__ import annotations

from suffixsvc.verb_options import with_options
from suffixsvc_bench.training.options import TrainOptions


@with_options
def bench_train(options: TrainOptions) -> None:
    """Learn the starting weights of new namespaces.

    The file has counters and mixer weights, no text, and does not depend on a tokenizer. Pass it to
    SuffixCache(starting_weights=...); the shipped weights were made in the same way.
    """
    from suffixsvc_bench.training.command import run_bench_train

    run_bench_train(options)

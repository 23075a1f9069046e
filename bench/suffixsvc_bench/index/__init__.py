"""Benchmark of the in-memory index: ingest, step latency, memory, removal, opening. See
:func:`run_index_bench`.
"""

from suffixsvc_bench.index.run import IndexBenchOptions, run_index_bench
from suffixsvc_bench.index.texts import KINDS

__all__ = ["KINDS", "IndexBenchOptions", "run_index_bench"]

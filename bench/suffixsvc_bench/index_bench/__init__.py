"""The hot index under load: ingest, step latency, memory, removal, opening; see :func:`run_index_bench`."""

from suffixsvc_bench.index_bench.run import IndexBenchOptions, run_index_bench
from suffixsvc_bench.index_bench.texts import KINDS

__all__ = ["KINDS", "IndexBenchOptions", "run_index_bench"]

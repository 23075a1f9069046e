"""Generator of docs/performance.md from the JSON of the benchmarks."""

from suffixsvc_bench.page.publish import publish

__all__ = ["publish"]

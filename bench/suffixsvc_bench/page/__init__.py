"""Generator of docs/performance.md from the JSON of the benchmarks."""

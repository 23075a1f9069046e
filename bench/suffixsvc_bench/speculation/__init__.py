"""Generation on real models for benchmarks: fixtures, speculative generation, recorded calls."""

"""Measuring: replays of recorded logs, the demo, and what later benchmarks add."""

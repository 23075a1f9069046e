"""Benchmarks of suffixsvc: replays of recorded logs, micro-benchmarks, decoding on real models, the demo."""

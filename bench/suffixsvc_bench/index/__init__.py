"""Benchmarks of the in-memory index (ingest, steps, memory, removal, opening) and of sealed segments."""

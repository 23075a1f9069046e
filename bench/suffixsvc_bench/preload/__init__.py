"""Benchmark of preloaded recipes on held-out questions: ``suffixsvc bench preload``."""

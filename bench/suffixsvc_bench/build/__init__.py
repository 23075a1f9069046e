"""Benchmark of building caches: throughput, memory, and the hits that remain after pruning.

This package imports nothing: its parts run as separate, measured processes and load only what they need.
"""

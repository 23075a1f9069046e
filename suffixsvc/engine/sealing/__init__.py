"""Sealed segments of a cache: writing, merging, loading and repair."""

"""Measures what building caches costs and what the caches are worth.

Imports nothing: the parts, processes of their own that are measured, load what they need and no more.
"""

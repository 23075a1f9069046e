"""Shared base of the log readers: bytes, lines, JSON, times and options."""

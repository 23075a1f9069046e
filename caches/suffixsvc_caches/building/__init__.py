"""Builds of caches from logs, as run by ``suffixsvc build``."""

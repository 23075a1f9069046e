"""Limits on the memory of namespaces and of the cache: admission, eviction, expiry by policy."""

"""Followers: processes that read the log on and draft by themselves (proto/suffixsvc/v1/watch.proto)."""

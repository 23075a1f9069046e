"""Verbs on services and data folders: serve, draft-worker, compact, namespaces."""

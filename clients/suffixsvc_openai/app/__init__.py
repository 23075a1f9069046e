"""The HTTP server: routes, server-sent events, keys, metrics, life cycle."""

"""HTTP plumbing: keys, callers, bodies of requests, and streams to clients that may be slow or go away."""

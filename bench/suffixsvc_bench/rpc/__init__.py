"""Benchmark of the wire: a step through the service beside a bare gRPC echo of the same message sizes."""

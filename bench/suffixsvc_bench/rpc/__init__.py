"""Benchmark of the wire: a step through the service beside a bare gRPC echo of the same message sizes."""

from suffixsvc_bench.rpc.report import RpcReport, Timing
from suffixsvc_bench.rpc.run import RpcOptions, run_rpc_bench

__all__ = ["RpcOptions", "RpcReport", "Timing", "run_rpc_bench"]

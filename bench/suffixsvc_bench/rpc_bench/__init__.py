"""What a step through the service costs, beside a bare gRPC echo of the same message sizes, in one run."""

from suffixsvc_bench.rpc_bench.report import RpcReport, Timing
from suffixsvc_bench.rpc_bench.run import RpcOptions, run_rpc_bench

__all__ = ["RpcOptions", "RpcReport", "Timing", "run_rpc_bench"]

"""``suffixsvc bench rpc``: a step through the service beside a bare gRPC echo."""

from __future__ import annotations

from suffixsvc.verb_options import with_options
from suffixsvc_bench.rpc.options import RpcOptions
from suffixsvc_cli.base.options import AsJson


@with_options
def rpc(options: RpcOptions, as_json: AsJson = False) -> None:
    """Measure a step through the service beside a bare gRPC echo of the same message sizes, in one run.

    Starts `suffixsvc serve` and the echo as separate processes on this machine and alternates between them.
    "beyond" is the time of a step beyond the echo, "engine" the time of a step without a service, both per
    session in the message.
    """
    from suffixsvc.runtime.stop_signals import stop_on_signals
    from suffixsvc_bench.report.output import print_results, report_progress
    from suffixsvc_bench.rpc.report import rpc_parts
    from suffixsvc_bench.rpc.run import run_rpc_bench

    with stop_on_signals(), report_progress() as report:
        results = run_rpc_bench(options, report)
    print_results(results, rpc_parts, as_json=as_json)

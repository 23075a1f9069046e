"""``suffixsvc bench http``: the OpenAI-compatible server beside llama-server."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from suffixsvc.verb_options import with_options
from suffixsvc_bench.serving.options import HttpOptions

if TYPE_CHECKING:
    from suffixsvc_bench.serving.results import Measured


@with_options
def bench_http(options: HttpOptions) -> None:
    """Compare `suffixsvc openai` with llama-server, through HTTP, on the same model.

    Every call is answered by the driver in this process, by this server without drafts and with them, and by
    llama-server plain and in its speculative modes, one right after the other; all answers are compared with
    the driver's. Further parts: several clients at once, a conversation of many turns, JSON schemas. Servers
    that are not timed must be idle, which is checked. Run nothing else on the machine meanwhile.
    """
    from suffixsvc.runtime.atomic_file import write_atomically
    from suffixsvc.runtime.stop_signals import stop_on_signals
    from suffixsvc_bench.decode.variants.llama_server import MODES
    from suffixsvc_bench.decode.workload.jobs import WORKLOADS
    from suffixsvc_bench.report.output import print_results, report_progress, require_file_path
    from suffixsvc_bench.serving.command import run_http
    from suffixsvc_bench.serving.tables import http_parts

    for name in ("report", "prepared"):
        require_file_path(getattr(options, name), f"--{name}")
    given = {"log": options.log, "files": options.files}
    options = replace(
        options,
        workloads=options.workloads or tuple(name for name in WORKLOADS if given.get(name, True)),
        llama_modes=options.llama_modes or tuple(MODES),
    )

    def save(measured: Measured) -> None:
        if options.report is not None:
            write_atomically(options.report, json.dumps(measured.as_dict(), indent=1) + "\n")

    with stop_on_signals(), report_progress() as report:
        measured = run_http(options, report, save)
    print_results(measured.as_dict(), http_parts, as_json=options.as_json)

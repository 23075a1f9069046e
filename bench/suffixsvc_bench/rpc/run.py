"""Runner of the benchmark of the wire: service, echo and engine in alternating rounds."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from suffixsvc import SuffixCache
from suffixsvc_bench.report.output import Report
from suffixsvc_bench.report.provenance import provenance
from suffixsvc_bench.report.statistics import percentiles
from suffixsvc_bench.rpc.follower_figures import follower_figures
from suffixsvc_bench.rpc.follower_steps import follower_steps
from suffixsvc_bench.rpc.identity_steps import identity_steps
from suffixsvc_bench.rpc.neighbour_steps import neighbour_steps
from suffixsvc_bench.rpc.options import RpcOptions
from suffixsvc_bench.rpc.processes import Addresses, echo_process, service_process
from suffixsvc_bench.rpc.subjects import NAMESPACE, EchoCalls, EngineSteps, StreamSteps, Subject, UnarySteps
from suffixsvc_bench.rpc.timing import alternating
from suffixsvc_bench.rpc.workload import Workload
from suffixsvc_client import SuffixClient

_PROMPT_TOKENS: Final = 200
_TEXT_TOKENS: Final = 4_000
_OUTPUT_TOKENS: Final = 500
_WARM_CALLS: Final = 50
#: calls whose message sizes the echo repeats
_SIZED: Final = 64


def run_rpc_bench(options: RpcOptions, progress: Report = lambda *_: None) -> dict[str, Any]:
    """Start both servers, measure every configuration, stop them.

    Returns:
        JSON-able data: {"provenance", "options", "timings"}. A timing is one configuration: our step and the
        echo of the same sizes, in alternating rounds of one run.

        * "transport": unix or tcp. "kind": stream or unary. "mode": hot (back-to-back calls) or cold
          (a CPU-bound pause before each call, as in decoding). "batch": sessions in one message.
        * "calls": timed calls of each subject. "request_bytes", "reply_bytes": mean message sizes. "drafted":
          mean tokens in the answer to a step.
        * "step", "echo": microseconds per message. "engine": microseconds for steps of as many sessions in
          this process, without a service.
        * "ratio": ratio of the medians, step / echo. "beyond_us_per_session": their difference per session.
          "sessions_per_second": steps of one session per second, from the mean.

        With ``options.identities`` also "identity_steps", with ``options.neighbours`` also "neighbour_steps",
        with ``options.followers`` also "follower_steps" and "follower_figures", see the functions of these
        names.

    Raises:
        ServiceError: a server did not start, or a step was not answered.
    """
    where = provenance()
    configurations = options.configurations()
    timings: list[dict[str, Any]] = []
    workload = Workload(options.seed)
    with (
        tempfile.TemporaryDirectory(prefix="sfx-") as name,
        service_process(Path(name)) as service,
        echo_process(Path(name)) as echo,
        SuffixCache() as engine,
    ):
        known = workload.outputs(NAMESPACE, options.outputs, _OUTPUT_TOKENS)
        engine.namespace(NAMESPACE).add_outputs(known)
        with SuffixClient(service["unix"]) as client:
            client.namespace(NAMESPACE).add_outputs(known)
        for configuration in configurations:

            def notify(share: float, name: str = "{}, {}, batch {}, {}".format(*configuration)) -> None:
                progress(name, (len(timings) + share) / len(configurations))

            notify(0.0)
            timings.append(_measure(configuration, options, workload, service, echo, engine, notify))
    found = {"provenance": where.as_dict(), "options": asdict(options), "timings": timings}

    def about(name: str) -> None:
        progress(name, 1.0)

    if options.identities:
        found["identity_steps"] = identity_steps(
            about, calls=options.calls, pause_ms=options.pause_ms, seed=options.seed
        )
    if options.neighbours:
        found["neighbour_steps"] = neighbour_steps(about, calls=options.calls, seed=options.seed)
    if options.followers:
        found["follower_steps"] = follower_steps(about, calls=options.calls, seed=options.seed)
        found["follower_figures"] = follower_figures(about, options)
    return found


def _measure(
    configuration: tuple[str, str, int, str],
    options: RpcOptions,
    workload: Workload,
    service: Addresses,
    echo: Addresses,
    cache: SuffixCache,
    notify: Callable[[float], None],
) -> dict[str, Any]:
    transport, kind, batch, mode = configuration
    target, width = service[transport], options.max_draft_tokens
    prompts = [workload.text(_PROMPT_TOKENS) for _ in range(batch)]
    texts = [workload.text(_TEXT_TOKENS) for _ in range(batch)]
    with ExitStack() as stack:
        step: StreamSteps | UnarySteps
        if kind == "unary":
            step = UnarySteps(target, prompts[0], texts[0], width)
        else:
            step = StreamSteps(target, prompts, texts, width)
        stack.enter_context(closing(step))
        sizes = step.sizes(_SIZED)
        think_s = float(np.median([_preparation_seconds(step) for _ in range(_SIZED)]))
        bare = EchoCalls(echo[transport], sizes, think_s, stream=kind != "unary")
        stack.enter_context(closing(bare))
        engine = stack.enter_context(closing(EngineSteps(cache, prompts, texts, width)))
        pause_s = options.pause_ms / 1e3 if mode == "cold" else 0.0
        taken = alternating(
            (step, bare, engine),
            options.calls,
            options.rounds,
            pause_s,
            _WARM_CALLS,
            lambda calls: notify(calls / options.calls),
        )
    us = dict(zip(("step", "echo", "engine"), map(percentiles, taken), strict=True))
    return {
        "transport": transport,
        "kind": kind,
        "batch": batch,
        "mode": mode,
        "calls": options.calls,
        "request_bytes": float(np.mean([s.request for s in sizes])),
        "reply_bytes": float(np.mean([s.reply for s in sizes])),
        "drafted": step.drafted / step.steps,
        **us,
        "ratio": us["step"]["p50"] / us["echo"]["p50"],
        "beyond_us_per_session": (us["step"]["p50"] - us["echo"]["p50"]) / batch,
        "sessions_per_second": batch * 1e6 / us["step"]["mean"],
    }


def _preparation_seconds(subject: Subject) -> float:
    """Seconds that the caller spends between two calls."""
    before = time.perf_counter()
    subject.prepare()
    spent = time.perf_counter() - before
    subject.call()
    return spent

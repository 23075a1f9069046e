"""Runner of the benchmark of the wire: service, echo and engine in alternating rounds."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from suffixsvc import Limits, SuffixCache
from suffixsvc.errors import InvalidConfigError
from suffixsvc_bench.report.provenance import provenance
from suffixsvc_bench.rpc.processes import Addresses, echo_process, service_process
from suffixsvc_bench.rpc.report import Percentiles, RpcReport, Timing
from suffixsvc_bench.rpc.subjects import (
    NAMESPACE,
    EchoStream,
    EchoUnary,
    EngineSteps,
    StreamSteps,
    Subject,
    UnarySteps,
)
from suffixsvc_bench.rpc.timing import portions, timed
from suffixsvc_bench.rpc.workload import Workload
from suffixsvc_client import SuffixClient

__all__ = ["RpcOptions", "run_rpc_bench"]

_PROMPT_TOKENS: Final = 200
_TEXT_TOKENS: Final = 4_000
_OUTPUT_TOKENS: Final = 500
#: calls whose message sizes the echo repeats
_SIZED: Final = 64


@dataclass(frozen=True, slots=True)
class RpcOptions:
    """What is measured.

    Raises:
        InvalidConfigError: an option is out of range.
    """

    transports: tuple[str, ...] = ("unix", "tcp")
    #: gRPC's stream, the direct socket (unix only), unary calls
    kinds: tuple[str, ...] = ("stream", "direct", "unary")
    #: sessions in one message; a unary call holds one
    batches: tuple[int, ...] = (1, 8, 64)
    modes: tuple[str, ...] = ("hot", "cold")
    #: timed calls of each subject in each configuration
    calls: int = 800
    #: rounds that the calls are divided into: step, echo, engine, step, echo, engine ...
    rounds: int = 8
    #: length of the CPU-bound pause before a cold call, milliseconds
    pause_ms: float = 4.0
    max_draft_tokens: int = 16
    #: outputs of 500 tokens in the service at the start
    outputs: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (
            ("transports", {"unix", "tcp"}),
            ("kinds", {"stream", "direct", "unary"}),
            ("modes", {"hot", "cold"}),
        ):
            chosen = getattr(self, name)
            if not chosen or not set(chosen) <= known:
                raise InvalidConfigError(f"{name} must be of {sorted(known)}", got=chosen)
        most = Limits().max_sessions
        if not self.batches or min(self.batches) < 1 or max(self.batches) > most:
            raise InvalidConfigError(f"batches must be numbers of sessions, 1 .. {most}", got=self.batches)
        if not 1 <= self.rounds <= self.calls:
            raise InvalidConfigError("rounds must be 1 .. calls", got=self.rounds)
        if self.pause_ms < 0 or self.max_draft_tokens < 1 or self.outputs < 1:
            raise InvalidConfigError(
                "pause_ms must be >= 0, max_draft_tokens and outputs >= 1", got=repr(self)[:200]
            )

    def configurations(self) -> list[tuple[str, str, int, str]]:
        """(transport, kind, batch, mode) of every configuration."""
        return [
            (transport, kind, batch, mode)
            for transport in self.transports
            for kind in self.kinds
            if kind != "direct" or transport == "unix"
            for batch in ((1,) if kind == "unary" else self.batches)
            for mode in self.modes
        ]


def run_rpc_bench(
    options: RpcOptions | None = None, progress: Callable[[str, float], None] | None = None
) -> RpcReport:
    """Start both servers, measure every configuration, stop them.

    Args:
        options: None: the defaults.
        progress: called with the current configuration and the completed fraction of the run.

    Raises:
        InvalidConfigError: an option is out of range.
        ServiceError: a server did not start, or a step was not answered.
    """
    chosen = options or RpcOptions()
    where = provenance()
    configurations = chosen.configurations()
    timings: list[Timing] = []
    workload = Workload(chosen.seed)
    with (
        tempfile.TemporaryDirectory(prefix="sfx-") as name,
        service_process(Path(name)) as service,
        echo_process(Path(name)) as echo,
        SuffixCache() as engine,
    ):
        known = workload.outputs(NAMESPACE, chosen.outputs, _OUTPUT_TOKENS)
        engine.namespace(NAMESPACE).add_outputs(known)
        with SuffixClient(service.unix) as client:
            client.namespace(NAMESPACE).add_outputs(known)
        for configuration in configurations:

            def notify(share: float, name: str = "{}, {}, batch {}, {}".format(*configuration)) -> None:
                if progress is not None:
                    progress(name, (len(timings) + share) / len(configurations))

            notify(0.0)
            timings.append(_measure(configuration, chosen, workload, service, echo, engine, notify))
    return RpcReport(where, asdict(chosen), timings)


def _measure(
    configuration: tuple[str, str, int, str],
    options: RpcOptions,
    workload: Workload,
    service: Addresses,
    echo: Addresses,
    cache: SuffixCache,
    notify: Callable[[float], None],
) -> Timing:
    transport, kind, batch, mode = configuration
    target, echo_target = getattr(service, transport), getattr(echo, transport)
    prompts = [workload.text(_PROMPT_TOKENS) for _ in range(batch)]
    texts = [workload.text(_TEXT_TOKENS) for _ in range(batch)]
    width = options.max_draft_tokens
    step: StreamSteps | UnarySteps
    step = (
        UnarySteps(target, prompts[0], texts[0], width)
        if kind == "unary"
        else StreamSteps(target, prompts, texts, width, direct=kind == "direct")
    )
    sizes = step.sizes(_SIZED)
    think_s = float(np.median([_preparation_seconds(step) for _ in range(_SIZED)]))
    bare: Subject = (EchoUnary if kind == "unary" else EchoStream)(echo_target, sizes, think_s)
    engine = EngineSteps(cache, prompts, texts, width)
    pause_s = options.pause_ms / 1e3 if mode == "cold" else 0.0
    step_s: list[float] = []
    echo_s: list[float] = []
    engine_s: list[float] = []
    try:
        for subject in (step, bare, engine):
            timed(subject, min(50, options.calls), pause_s)  # warm-up
        for calls in portions(options.calls, options.rounds):
            step_s += timed(step, calls, pause_s)
            echo_s += timed(bare, calls, pause_s)
            engine_s += timed(engine, calls, pause_s)
            notify(len(step_s) / options.calls)
    finally:
        engine.close()
        bare.close()
        step.close()
    return Timing(
        transport=transport,
        kind=kind,
        batch=batch,
        mode=mode,
        calls=options.calls,
        request_bytes=float(np.mean([s.request for s in sizes])),
        reply_bytes=float(np.mean([s.reply for s in sizes])),
        drafted=step.drafted / step.steps,
        step=Percentiles.of(step_s),
        echo=Percentiles.of(echo_s),
        engine=Percentiles.of(engine_s),
    )


def _preparation_seconds(subject: Subject) -> float:
    """Seconds that the caller spends between two calls."""
    before = time.perf_counter()
    subject.prepare()
    spent = time.perf_counter() - before
    subject.call()
    return spent

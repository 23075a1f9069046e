"""Figures of followers beyond their steps: opening, memory, delay, cost at the service, and throughput."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from suffixsvc_bench.report.statistics import percentiles
from suffixsvc_bench.rpc.follower_roles import known_outputs, phrase
from suffixsvc_bench.rpc.options import RpcOptions
from suffixsvc_bench.rpc.processes import service_process
from suffixsvc_bench.rpc.subjects import NAMESPACE
from suffixsvc_bench.rpc.workload import Workload
from suffixsvc_client import SuffixClient
from suffixsvc_follower import Follower

_PATIENCE: Final = 600.0
_OUTPUT_TOKENS: Final = 1000
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


class Role:
    """A process of :mod:`suffixsvc_bench.rpc.follower_roles`."""

    def __init__(self, role: str, address: str, *arguments: object) -> None:
        line = [sys.executable, "-m", "suffixsvc_bench.rpc.follower_roles", role, address]
        self._process = subprocess.Popen(
            [*line, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._read()

    def ask(self) -> Any:
        """The role's next answer."""
        self.begin()
        return self._read()

    def begin(self) -> None:
        """Ask for the next answer, which :meth:`result` returns."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def result(self) -> Any:
        """The answer to :meth:`begin`."""
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of the measurement ended: {self._process.wait()}")
        return json.loads(line)

    def __enter__(self) -> Role:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(_PATIENCE)


#: address of a service, and its process id
Service = tuple[str, int]


@contextmanager
def service_with(tokens: int) -> Iterator[Service]:
    """A service with about so many tokens in the namespace; 0: with those that every process has."""
    with tempfile.TemporaryDirectory(prefix="sfx-") as name, service_process(Path(name)) as addresses:
        address = addresses["unix"]
        with SuffixClient(address) as client:
            namespace = client.namespace(NAMESPACE)
            if not tokens:
                namespace.add_outputs(known_outputs())
            workload, left = Workload(1), tokens
            while left > 0:
                outputs = workload.outputs(NAMESPACE, 256, _OUTPUT_TOKENS)
                namespace.add_outputs(outputs)
                left -= len(outputs) * _OUTPUT_TOKENS
        ready = json.loads((Path(name) / "service.ready").read_text(encoding="utf-8"))
        yield address, int(ready["pid"])


def opening_seconds(service: Service, rounds: int) -> dict[str, Any]:
    """Seconds from opening a follower to its first draft, and the private memory of the second one of a host.

    Args:
        service: one with tokens, see :func:`service_with`.
    """
    address, _ = service
    text = Workload(1).outputs(NAMESPACE, 1, _OUTPUT_TOKENS)[0].token_ids
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        with Follower(address, namespaces=[(NAMESPACE, "")]) as follower:
            follower.wait(NAMESPACE, _PATIENCE)
            with follower.namespace(NAMESPACE).open_session([1]) as session:
                drafted = len(session.step(text[100:108].tolist()))
                seconds.append(time.perf_counter() - began)
                session.close(commit=False)
        if not drafted:
            raise RuntimeError("nothing was drafted")
    with SuffixClient(address) as client:
        stats = client.namespace(NAMESPACE).stats()
    with Role("hold", address, 1), Role("hold", address, 1) as second:
        memory = second.ask()
    return {
        "tokens": stats.tokens,
        "hot_tokens": stats.hot_tokens,
        "segments": stats.segments,
        "seconds": float(np.median(seconds)),
        "second_private_bytes": memory["after"] - memory["before"],
    }


def written_to_drafted(service: Service, phrases: int) -> dict[str, float]:
    """Milliseconds from a step in one process until another process can draft its tokens."""
    address, _ = service
    with (
        Role("read", address, phrases) as reader,
        Follower(address, namespaces=[(NAMESPACE, "")]) as follower,
    ):
        follower.wait(NAMESPACE, _PATIENCE)
        session = follower.namespace(NAMESPACE).open_session([1])
        time.sleep(0.2)
        reader.begin()
        written = []
        for number in range(phrases):
            time.sleep(0.05 + 0.02 * float(np.random.default_rng(number).random()))
            written.append(time.monotonic())
            session.step(phrase(number).tolist(), max_draft_tokens=0)
        seen = reader.result()
        session.close(commit=False)
    delays = (np.array(seen) - np.array(written)).tolist()
    return {name: microseconds / 1e3 for name, microseconds in percentiles(delays).items()}


def fan_out_share(
    service: Service, seconds: float, followers: int, sessions: int = 16, per_second: int = 50
) -> dict[str, float]:
    """Share of a core that the service takes for the text of live sessions, without and with followers."""
    address, pid = service
    with Role("write", address, sessions, sessions * per_second):
        writing = _share_of_core(pid, seconds)
        with Role("hold", address, followers):
            both = _share_of_core(pid, seconds)
    return {"writing": writing, "with_followers": both, "fan_out": both - writing}


def _share_of_core(pid: int, seconds: float) -> float:
    time.sleep(min(1.0, seconds))
    before = _cpu_seconds(pid)
    time.sleep(seconds)
    return (_cpu_seconds(pid) - before) / seconds


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def flat_out(service: Service, seconds: float, rounds: int) -> dict[str, float]:
    """Steps a second of two followers in processes of their own, and of two threads of one engine."""
    address, _ = service
    of_followers, embedded = [], []
    for _ in range(rounds):
        with Role("flat-embedded", address, seconds, 2) as engine:
            embedded.append(engine.ask())
        with (
            Role("flat-follower", address, seconds, 1) as one,
            Role("flat-follower", address, seconds, 2) as two,
        ):
            one.begin()
            two.begin()
            of_followers.append(one.result() + two.result())
    mine, theirs = float(np.median(of_followers)), float(np.median(embedded))
    return {"followers": mine, "embedded": theirs, "ratio": mine / theirs}


def follower_figures(notify: Callable[[str], None], options: RpcOptions) -> dict[str, Any]:
    """All figures; see the functions of this module.

    Args:
        notify: called with the name of each before it is measured.
        options: sizes and durations. Without sealed tokens "open_sealed" is None.
    """
    seconds, sealed = options.seconds, options.sealed_tokens
    found: dict[str, Any] = {"open_sealed": None}
    for name, tokens in (("open_hot", options.hot_tokens), ("open_sealed", sealed)):
        if tokens:
            notify(name)
            with service_with(tokens) as service:
                found[name] = opening_seconds(service, 3)
    with service_with(0) as service:
        notify("written_to_drafted_ms")
        found["written_to_drafted_ms"] = written_to_drafted(service, round(10 * seconds))
        notify("fan_out")
        found["fan_out"] = fan_out_share(service, seconds, 8)
        notify("flat_out")
        found["flat_out"] = flat_out(service, seconds / 2, 3)
    return found

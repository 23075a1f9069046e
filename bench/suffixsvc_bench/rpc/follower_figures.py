"""Figures of followers beyond their steps: opening, memory, delay, cost at the service, and throughput."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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


@contextmanager
def _service(tokens: int) -> Iterator[tuple[str, int]]:
    """A service with about so many tokens in the namespace; its address and its process id."""
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


def opening_seconds(tokens: int, rounds: int) -> dict[str, Any]:
    """Seconds from opening a follower to its first draft, in a service of so many tokens."""
    with _service(tokens) as (address, _):
        text = Workload(1).outputs(NAMESPACE, 256, _OUTPUT_TOKENS)[0].token_ids
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


def written_to_drafted(phrases: int) -> dict[str, float]:
    """Milliseconds from a step in one process until another process can draft its tokens."""
    with (
        _service(0) as (address, _),
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
    seconds: float, followers: int, sessions: int = 16, per_second: int = 50
) -> dict[str, float]:
    """Share of a core that the service takes for the text of live sessions, without and with followers."""
    shares = []
    for count in (0, followers):
        with _service(0) as (address, pid), ExitStack() as stack:
            stack.enter_context(Role("write", address, sessions, sessions * per_second))
            if count:
                stack.enter_context(Role("hold", address, count))
            time.sleep(1.0)
            before = _cpu_seconds(pid)
            time.sleep(seconds)
            shares.append((_cpu_seconds(pid) - before) / seconds)
    return {"writing": shares[0], "with_followers": shares[1], "fan_out": shares[1] - shares[0]}


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def flat_out(seconds: float, rounds: int) -> dict[str, float]:
    """Steps a second of two followers in processes of their own, and of two threads of one engine."""
    with _service(0) as (address, _):
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
    found: dict[str, Any] = {}
    for name, measure in (
        ("open_hot", lambda: opening_seconds(options.hot_tokens, 3)),
        ("open_sealed", lambda: opening_seconds(sealed, 3) if sealed else None),
        ("written_to_drafted_ms", lambda: written_to_drafted(max(3, round(10 * seconds)))),
        ("fan_out", lambda: fan_out_share(seconds, 8)),
        ("flat_out", lambda: flat_out(seconds / 2, 3)),
    ):
        notify(name)
        found[name] = measure()
    return found

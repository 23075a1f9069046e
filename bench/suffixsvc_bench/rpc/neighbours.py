"""Loads of a noisy neighbour: another principal that keeps a service busy while steps of others are timed.

    with Neighbour("bulk", address, "m/noise") as neighbour:   a process of its own
        neighbour.begin()      works until
        done = neighbour.end() counts of what was done, and of what the service refused

    python -m suffixsvc_bench.rpc.neighbours KIND ADDRESS NAMESPACE SEED
                                reads "begin" and "end" lines, answers each with a line of JSON;
                                ends with its input

A client takes its identity from the environment (docs/security.md), so the neighbour is the principal whose
token ``environment`` has. What it writes it deletes again: no load grows without a bound.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Final, Self

import numpy as np

from suffixsvc.errors import LimitExceededError, SuffixError
from suffixsvc.types import NewOutput, TokenArray
from suffixsvc_client import ClientConfig, SuffixClient

#: seconds within which everything has an answer
_PATIENCE: Final = 120.0
_CONFIG: Final = ClientConfig(step_timeout_s=_PATIENCE, open_timeout_s=_PATIENCE, call_timeout_s=_PATIENCE)
_VOCABULARY: Final = 50_000
#: longest pause after a refusal that says when to come back
_LONGEST_PAUSE: Final = 1.0


class _Load:
    """One thread of a load: what it does again and again.

    Args:
        address: of the service.
        path: of the namespace that it uses, which is its own.
        seed: of its texts.
        stopped: set when it is to stop.
        counts: of what was done, shared by the threads of a load.
    """

    #: threads of the load, each with a client of its own
    threads = 4

    def __init__(
        self, address: str, path: str, seed: int, stopped: threading.Event, counts: Counter[str]
    ) -> None:
        self._address = address
        self._client = SuffixClient(address, _CONFIG)
        self._namespace = self._client.namespace(path)
        self._rng = np.random.default_rng(seed)
        self._stopped, self._counts = stopped, counts

    def run(self) -> None:
        """Work until it is stopped. What the service refuses is counted, and its pause respected."""
        while not self._stopped.is_set():
            try:
                self.work()
            except SuffixError as error:
                self._counts[f"refused: {type(error).__name__}"] += 1
                after = error.retry_after_s if isinstance(error, LimitExceededError) else 0.0
                self._stopped.wait(min(_LONGEST_PAUSE, max(0.01, after or 0.0)))
        self.finish()

    def work(self) -> None:
        """Do it once."""
        raise NotImplementedError

    def finish(self) -> None:
        """Give back what is held between two times."""
        self._client.close()

    def _text(self, tokens: int) -> TokenArray:
        return self._rng.integers(0, _VOCABULARY, tokens).astype(np.int32)

    def _outputs(self, count: int, tokens: int) -> list[NewOutput]:
        nothing = np.empty(0, np.int32)
        return [
            NewOutput(self._namespace.path, self._text(tokens), (tokens,), nothing, {"load": "noise"})
            for _ in range(count)
        ]


class _Bulk(_Load):
    """Bulk loads: calls of 256 random outputs of 1,000 tokens, 1 MB each; deleted after every eighth."""

    _LOADS: Final = 8

    def work(self) -> None:
        ids: list[int] = []
        try:
            for _ in range(self._LOADS):
                if self._stopped.is_set():
                    break
                ids += self._namespace.add_outputs(self._outputs(256, 1000))
                self._counts["loads"] += 1
        finally:
            if ids:
                self._namespace.delete(output_ids=ids)


class _Deletes(_Load):
    """Deletions: 64 outputs of 200 tokens are added, and deleted by a selection that looks at all of them."""

    def work(self) -> None:
        self._namespace.add_outputs(self._outputs(64, 200))
        self._namespace.delete(labels={"load": "noise"})
        self._counts["deletions"] += 1


class _Prompts(_Load):
    """Huge prompts: sessions of 100,000 tokens of prompt, which draft once and end."""

    def work(self) -> None:
        with_prompt = self._namespace.open_session(self._text(100_000), private=True)
        with_prompt.step(self._text(4).tolist())
        with_prompt.close(commit=False)
        self._counts["prompts"] += 1


class _Discards(_Load):
    """Discards: sessions that write 2,000 tokens, which all readers get, and retract them."""

    def work(self) -> None:
        session = self._namespace.open_session(self._text(64))
        for _ in range(125):
            session.step(self._text(16).tolist(), max_draft_tokens=0)
        session.close(commit=False)
        self._counts["discards"] += 1


class _Idle(_Load):
    """Idle streams: connections with a stream and a session each, all opened, then silent."""

    threads = 1
    _STREAMS: Final = 200

    def work(self) -> None:
        with ExitStack() as held:
            for _ in range(self._STREAMS):
                if self._stopped.is_set():
                    break
                client = held.enter_context(SuffixClient(self._address, _CONFIG))
                session = client.namespace(self._namespace.path).open_session(self._text(64))
                held.callback(session.close, commit=False)
                session.step(self._text(4).tolist())
                self._counts["streams"] += 1
            self._stopped.wait()


_KINDS: Final[Mapping[str, type[_Load]]] = {
    "bulk": _Bulk,
    "deletes": _Deletes,
    "prompts": _Prompts,
    "discards": _Discards,
    "idle": _Idle,
}
#: kinds of loads
KINDS: Final = tuple(_KINDS)


class Neighbour:
    """A process with one load, idle until it is told to begin. Thread-unsafe.

    Args:
        kind: of :data:`KINDS`.
        address: of the service.
        path: namespace of the load; its principal may write to it and delete from it.
        environment: variables of its process besides those of this one, as SUFFIXSVC_TOKEN.
        seed: of its texts.
        niceness: of its process; 0: that of this one.
    """

    def __init__(
        self,
        kind: str,
        address: str,
        path: str,
        environment: Mapping[str, str] | None = None,
        seed: int = 0,
        niceness: int = 0,
    ) -> None:
        if kind not in _KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
        line = [sys.executable, "-m", "suffixsvc_bench.rpc.neighbours", kind, address, path, str(seed)]
        self._process = subprocess.Popen(
            line,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if niceness:
            os.setpriority(os.PRIO_PROCESS, self._process.pid, niceness)
        self._read()

    def begin(self) -> None:
        """Work from now on."""
        self._ask("begin")

    def end(self) -> dict[str, int]:
        """Stop working, and give back what is held; counts of what was done since :meth:`begin`."""
        done: dict[str, int] = self._ask("end")
        return done

    def _ask(self, word: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the neighbour ended: exit code {self._process.wait()}")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(_PATIENCE)


class _Worker:
    """The threads of a load in this process."""

    def __init__(self, new: Callable[[int, threading.Event, Counter[str]], _Load], threads: int) -> None:
        self._stopped = threading.Event()
        self._counts: Counter[str] = Counter()
        self._threads = [
            threading.Thread(target=new(number, self._stopped, self._counts).run) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> dict[str, int]:
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        return dict(self._counts)


def main(kind: str, address: str, path: str, seed: str) -> None:
    """Be a neighbour, see the head of this module."""
    load = _KINDS[kind]
    worker: _Worker | None = None
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        answer: Any = {}
        if line.strip() == "begin":
            worker = _Worker(
                lambda number, stopped, counts: load(
                    address, path, 1000 * int(seed) + number, stopped, counts
                ),
                load.threads,
            )
        elif worker is not None:
            answer, worker = worker.end(), None
        print(json.dumps(answer), flush=True)
    if worker is not None:
        worker.end()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""soak_program.py ORDER: one client process of the soak, a tenant or a follower.

An order (JSON): {"target", "token", "namespace", "sessions", "seconds", "seed", "follow", "echo", "result"}.
Sessions are opened, stepped, closed, discarded and abandoned, and their outputs deleted, in ticks of
TICK_SECONDS. Each tick times one step and one call of a bare echo. RESULT gets the times (.npz), standard
output a line when the ticks begin, then the counts.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter, deque
from dataclasses import replace
from typing import Any, Final

import grpc
import numpy as np

from suffixsvc.transport.identity import ClientIdentity
from suffixsvc_bench.rpc import echo
from suffixsvc_bench.rpc.workload import Workload
from suffixsvc_client import ClientConfig, SuffixClient
from suffixsvc_follower import Follower, FollowerConfig

TICK_SECONDS: Final = 0.02
#: steps of a tick beside the timed one, in one message
BATCH: Final = 10
PROMPT_TOKENS: Final = 50
#: tokens of an output at most, and of a step
OUTPUT_TOKENS: Final = 240
STEP_TOKENS: Final = 4
#: bytes of a step's message and of its answer, for the echo
_ECHO_BYTES: Final = (80, 120)


class _Generation:
    """One session and the text that its model writes."""

    def __init__(self, session: Any, text: list[int]) -> None:
        self.session = session
        self._text = text
        self._at = 0

    @property
    def ended(self) -> bool:
        return self._at >= len(self._text)

    def next(self) -> list[int]:
        new = self._text[self._at : self._at + STEP_TOKENS]
        self._at += len(new)
        return new


class Churn:
    """The sessions of one process."""

    def __init__(self, backend: Any, order: dict[str, Any]) -> None:
        self._backend = backend
        self._namespace = backend.namespace(order["namespace"])
        self._choice = random.Random(order["seed"])
        self._workload = Workload(order["seed"])
        self.counts: Counter[str] = Counter()
        self._outputs: deque[int] = deque(maxlen=50)
        self._live = [self._open() for _ in range(order["sessions"])]

    def _open(self) -> _Generation:
        self.counts["opened"] += 1
        session = self._namespace.open_session(self._workload.text(PROMPT_TOKENS))
        return _Generation(session, self._workload.text(self._choice.randint(20, OUTPUT_TOKENS)).tolist())

    def step(self) -> float:
        """Step one session; seconds."""
        [at] = self._ready(1)
        new = self._live[at].next()
        began = time.perf_counter()
        self._live[at].session.step(new, max_draft_tokens=8)
        return time.perf_counter() - began

    def step_batch(self) -> None:
        """Step several sessions in one message."""
        ready = self._ready(min(BATCH, len(self._live)))
        steps = [
            (self._live[at].session, {"new_token_ids": self._live[at].next(), "max_draft_tokens": 8})
            for at in ready
        ]
        if hasattr(self._backend, "step_many"):
            self._backend.step_many(steps)
        else:
            for session, arguments in steps:
                session.step(**arguments)
        self.counts["steps"] += len(steps) + 1

    def _ready(self, number: int) -> list[int]:
        """Sessions that have text left; those that do not are replaced first."""
        found = self._choice.sample(range(len(self._live)), number)
        for at in found:
            if self._live[at].ended:
                self._end(self._live[at].session)
                self._live[at] = self._open()
        return found

    def _end(self, session: Any) -> None:
        share = self._choice.random()
        if share < 0.75:
            output_id = session.close()
            self.counts["closed"] += 1
            if output_id is not None:
                self._outputs.append(output_id)
        elif share < 0.95:
            session.close(commit=False)
            self.counts["discarded"] += 1
        else:
            self.counts["abandoned"] += 1
        if self._outputs and self._choice.random() < 0.05:
            self.counts["deleted"] += self._namespace.delete(output_ids=[self._outputs.pop()]).outputs

    def close(self) -> None:
        for each in self._live:
            each.session.close(commit=False)


def _backend(order: dict[str, Any]) -> Any:
    identity = ClientIdentity(token=order["token"])
    config = ClientConfig(step_timeout_s=30, open_timeout_s=30, identity=identity)
    if order["follow"]:
        follower = Follower(
            order["target"], FollowerConfig(client=config, connect_seconds=30), [(order["namespace"], "")]
        )
        assert follower.wait(order["namespace"], 60)
        return follower
    return SuffixClient(order["target"], replace(config))


def main(order: dict[str, Any]) -> None:
    # written to beforehand: it would look like a leak otherwise
    times = np.full((round(order["seconds"] / TICK_SECONDS) + 2, 3), -1.0)
    ticks = 0
    backend = _backend(order)
    with grpc.insecure_channel(order["echo"]) as channel:
        bare: Any = channel.unary_unary(echo.UNARY)
        message = echo.echo_request(*_ECHO_BYTES)
        churn = Churn(backend, order)
        print("begun", flush=True)
        began = time.monotonic()
        tick = 0
        while (now := time.monotonic() - began) < order["seconds"]:
            step = churn.step()
            before = time.perf_counter()
            bare(message, timeout=60)
            times[ticks] = now, step, time.perf_counter() - before
            ticks += 1
            churn.step_batch()
            tick += 1
            time.sleep(max(0.0, began + tick * TICK_SECONDS - time.monotonic()))
            tick = max(tick, int((time.monotonic() - began) / TICK_SECONDS))  # no burst after a pause
        churn.close()
        empty = dict(backend.counts.empty) if isinstance(backend, SuffixClient) else {}
        backend.close()
    np.savez(order["result"], times=times[:ticks])
    print(json.dumps({**churn.counts, "ticks": ticks, "empty": empty}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

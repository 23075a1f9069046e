"""Threads that write to a service, whatever happens to it, and enter in a record what they are told."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any, Protocol

import numpy as np
from write_record import PATHS, WIDTH, WriteRecord, tokens_of

from suffixsvc.errors import LimitExceededError, ServiceError, StoreError
from suffixsvc.types import NewOutput
from suffixsvc_client import ClientConfig, SuffixClient

#: waits as long as a busy machine may take; a lost connection is noticed at once
CLIENT = ClientConfig(
    step_timeout_s=60, open_timeout_s=60, call_timeout_s=60, breaker_pause_s=0.01, breaker_max_pause_s=0.1
)
#: errors that a write may be repeated after
RETRIED = (ServiceError, StoreError, LimitExceededError)


class Opens(Protocol):
    """A client, or a follower."""

    def namespace(self, path: str) -> Any: ...


class Writers:
    """Writes, sessions and deletions from several threads, until :meth:`stop`.

    Args:
        record: receives what is acknowledged.
        seed: of the choices; the threads' timing is that of the machine.
    """

    def __init__(self, record: WriteRecord, seed: object) -> None:
        self.record, self.seed = record, seed
        self.stopping = threading.Event()
        self.errors: list[BaseException] = []
        self.refusals = 0
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[..., None], *args: object) -> None:
        """Run ``work(*args, rng)`` in a thread, which ends with the writers."""
        rng = Random(f"{self.seed}/{len(self._threads)}")

        def run() -> None:
            try:
                work(*args, rng)
            except BaseException as error:
                self.errors.append(error)
                self.stopping.set()

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def require_alive(self) -> None:
        """Raise the first error of a thread."""
        if self.errors:
            raise self.errors[0]

    def stop(self) -> None:
        """End the threads after what they are doing, which needs a service that answers."""
        self.stopping.set()
        for thread in self._threads:
            thread.join(300)
            assert not thread.is_alive(), "a write has had no answer for five minutes"
        self.require_alive()

    # --- what the threads do ----------------------------------------------------------------------------

    def add_outputs(self, client: SuffixClient, rng: Random) -> None:
        """Bulk loads, each one message, and deletions by id and by label."""
        mine: list[list[int]] = []
        while not self.stopping.is_set():
            path = rng.choice(PATHS)
            lengths = [rng.randrange(1, WIDTH + 1) for _ in range(rng.choice([1, 1, 3, 8, 40]))]
            keys = self.record.begin(path, lengths)
            outputs = [
                NewOutput(
                    path,
                    tokens_of(key, length),
                    (length,),
                    np.array([1, 2, 3], np.int32),
                    {"message": str(keys[0])},
                    uuid=rng.randbytes(16),
                )
                for key, length in zip(keys, lengths, strict=True)
            ]
            ids = self._until_answered(partial(client.namespace(path).add_outputs, outputs), rng)
            if ids is None:
                continue
            self.record.acknowledge(keys, ids)
            mine.append(keys)
            if rng.random() < 0.3:
                self._delete(client, mine.pop(rng.randrange(len(mine))), rng)
            time.sleep(rng.random() * 0.01)

    def write_sessions(self, opens: Opens, rng: Random) -> None:
        """Sessions that are closed, discarded, or left to the service; some of their outputs are deleted."""
        mine: list[int] = []
        while not self.stopping.is_set():
            path, length = rng.choice(PATHS), rng.randrange(4, WIDTH + 1)
            [key] = self.record.begin(path, [length], session=True)
            session = opens.namespace(path).open_session([1, 2, 3])
            for part in parts_of(length, rng):
                session.step(tokens_of(key, WIDTH)[part].tolist(), max_draft_tokens=4)
            if rng.random() < 0.1:
                self._until_answered(partial(session.close, commit=False), rng, give_up=0.0)
                self.record.discard(key)
                continue
            output_id = self._until_answered(session.close, rng)
            if output_id is None:
                with contextlib.suppress(*RETRIED):
                    session.close(wait=False)
                continue
            self.record.acknowledge([key], [output_id])
            mine.append(key)
            if rng.random() < 0.2:
                self._delete(opens, [mine.pop(rng.randrange(len(mine)))], rng)

    def _delete(self, opens: Opens, keys: list[int], rng: Random) -> None:
        """Delete outputs that are acknowledged."""
        self.record.begin_deletion(keys)
        namespace = opens.namespace(self.record.writes[keys[0]].path)
        ids = [self.record.writes[key].output_id for key in keys]
        by_label = len(keys) > 1 and rng.random() < 0.5
        selection: dict[str, Any] = {"labels": {"message": str(keys[0])}} if by_label else {"output_ids": ids}
        if self._until_answered(lambda: namespace.delete(**selection), rng) is not None:
            self.record.acknowledge_deletion(keys)

    def _until_answered(self, call: Callable[[], Any], rng: Random, give_up: float = 0.05) -> Any:
        """Repeat a call until it is answered; None: it was given up, with that probability after an error."""
        while True:
            try:
                return call()
            except RETRIED:
                self.refusals += 1
                if rng.random() < give_up:
                    return None
                time.sleep(0.01)


def parts_of(length: int, rng: Random) -> Iterator[slice]:
    """Consecutive parts of a session's text, as steps append them."""
    at = 0
    while at < length:
        end = min(length, at + rng.randrange(1, 12))
        yield slice(at, end)
        at = end

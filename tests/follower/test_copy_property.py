"""A copy that is fed from a real log at random points equals a fresh index of what the log holds."""

from __future__ import annotations

import random
from concurrent.futures import Future
from pathlib import Path

import pytest
from follower_testing import (
    PATH,
    Feeder,
    array,
    draft_of,
    open_local,
    random_tokens,
    require_equal,
    rows,
)

from suffixsvc import Limits, Session, SuffixCache
from suffixsvc.errors import ServiceUnavailableError
from suffixsvc.index import OnCommitted
from suffixsvc.types import NewOutput, OutputId
from suffixsvc_follower.contents.mirrors import LivePiece
from suffixsvc_follower.contents.namespace_copy import NamespaceCopy
from suffixsvc_follower.contents.own_writes import OwnWrite
from support.long_form import rounds


class World:
    """A service, a copy of one of its namespaces, and what is on its way between them."""

    def __init__(self, cache: SuffixCache, seed: int) -> None:
        self.cache, self.rng, self.copy = cache, random.Random(seed), NamespaceCopy(PATH)
        self.feeder = Feeder(cache, self.copy, lambda: self.service(0.3), lambda: self.rng.random() < 0.7)
        self.to_send: list[OwnWrite] = []
        self.replies: list[tuple[bytes, OutputId]] = []
        self.writes: list[OwnWrite] = []
        self.sessions: list[Session] = []
        self.names = 0

    def service(self, probability: float = 1.0) -> None:
        """The service's own work."""
        rng, cache = self.rng, self.cache
        if rng.random() >= probability:
            return
        namespace = cache.namespace(PATH)
        ids = [stored.output_id for stored in rows(cache)]
        match rng.randrange(12):
            case 0 | 1:
                namespace.add_output(random_tokens(rng), random_tokens(rng))
            case 2 | 3 if ids:
                namespace.delete(output_ids=[rng.choice(ids)])
            case 4:
                cache.seal(PATH) if ids else None
            case 5:
                cache.compact(PATH) if ids else None
            case 6 if rng.random() < 0.2:
                cache.delete_namespace(PATH)
            case 7:
                self.send_closes()
            case _:
                session = namespace.open_session(random_tokens(rng))
                session.step(random_tokens(rng))
                if rng.random() < 0.5:
                    session.append_context(random_tokens(rng))
                    session.step(random_tokens(rng))
                session.close(session_id=rng.choice(["", f"remote {rng.randrange(4)}"]))

    def send_closes(self) -> None:
        """Some closes of local sessions reach the service, some replies are lost."""
        for write in self.to_send:
            [output_id] = self.cache.namespace(PATH).add_outputs([write.output])
            self.replies.append((write.output.uuid, output_id))
        self.to_send = []

    def deliver_replies(self) -> None:
        self.rng.shuffle(self.replies)
        for uuid, output_id in self.replies:
            self.copy.acknowledge(uuid, output_id)
        self.replies = []

    def commit(
        self, output: NewOutput, on_committed: OnCommitted, _live_bytes: int
    ) -> Future[list[OutputId | None]]:
        write = self.copy.begin_own(output, on_committed)
        self.writes.append(write)
        self.to_send.append(write)
        return write.future

    def follower(self) -> None:
        """One step of the follower."""
        rng, copy, feeder = self.rng, self.copy, self.feeder
        match rng.randrange(12):
            case 0 | 1 | 2:
                feeder.catch_up()
            case 3:
                for outputs, deletions in feeder.batches[-rng.randrange(1, 6) :]:
                    copy.apply_changes(outputs, deletions)
            case 4:
                feeder.load()
            case 5:
                copy.clear()
                feeder.load()
            case 6 | 7:
                session = open_local(copy, random_tokens(rng), self.commit)
                session.step(random_tokens(rng))
                if rng.random() < 0.3:
                    session.append_context(random_tokens(rng))
                    session.step(random_tokens(rng))
                self.sessions.append(session)
            case 8 if self.sessions:
                session = self.sessions.pop(rng.randrange(len(self.sessions)))
                self.names += 1
                session.close(rng.random() < 0.8, wait=False, session_id=f"local {self.names}")
            case 9:
                self.deliver_replies()
            case 10:
                feeder.open_missing()
            case _:
                name, at = f"remote {rng.randrange(4)}", rng.randrange(60)
                piece = LivePiece(
                    name, at, array(random_tokens(rng)), array(random_tokens(rng)), rng.random() < 0.2
                )
                copy.mirrors.apply([piece], reset=rng.random() < 0.1)

    def settle(self) -> None:
        """Let everything arrive, and end all live text."""
        for session in self.sessions:
            session.close(commit=False)
        self.sessions = []
        if self.rng.random() < 0.5:
            self.send_closes()
        else:  # the service is not reached
            for write in self.to_send:
                self.copy.fail(write.output.uuid, ServiceUnavailableError("gone"))
            self.to_send = []
        if self.rng.random() < 0.5:
            self.deliver_replies()
        before, self.feeder._between = self.feeder._between, lambda: None
        self.feeder.catch_up()
        self.feeder._between = before
        self.deliver_replies()
        self.feeder.open_missing()
        self.copy.mirrors.clear()


@pytest.mark.parametrize("seed", range(rounds(2, full=5)))
def test_a_copy_holds_what_the_log_holds(place: Path | None, seed: int) -> None:
    print("seed", seed)
    with SuffixCache(place, limits=Limits(seal_tokens=64), background=False) as cache:
        world = World(cache, seed)
        for _ in range(12):
            for _ in range(world.rng.randrange(25)):
                world.service(0.6)
                world.follower()
            world.settle()
            require_equal(world.copy, rows(cache))
            assert all(write.future.done() for write in world.writes)
            assert world.copy.pending_writes == 0
            world.writes = []


@pytest.mark.parametrize("seed", range(rounds(3, full=6)))
def test_a_copy_drafts_as_a_fresh_index_does(tmp_path: Path, seed: int) -> None:
    """Where no recency decides: each context has one follower."""
    print("seed", seed)
    rng = random.Random(seed)
    with SuffixCache(tmp_path / "d", limits=Limits(seal_tokens=200), background=False) as cache:
        copy = NamespaceCopy(PATH)
        feeder = Feeder(cache, copy)
        namespace = cache.namespace(PATH)
        for start in range(60):
            namespace.add_output(range(start * 40, start * 40 + 30), [7000 + start])
            if rng.random() < 0.2:
                namespace.delete(output_ids=[rng.choice(rows(cache)).output_id])
            if rng.random() < 0.1:
                cache.seal(PATH)
            if rng.random() < 0.5:
                feeder.catch_up()
        feeder.catch_up()
        copy.maintain()
        fresh = require_equal(copy, rows(cache))
        assert copy.sealed()
        drafted = 0
        for start in range(60):
            context = list(range(start * 40, start * 40 + rng.randrange(2, 20)))
            expected = draft_of(fresh, context)
            assert draft_of(copy, context) == expected
            drafted += len(expected)
        assert drafted > 100

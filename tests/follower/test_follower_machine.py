"""Random sequences of everything that can happen to a service and its followers, compared with a model.

At rest every follower holds what the log holds. At any time no follower holds what was forgotten, once the
receipt names it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
from faulty_service import FaultyService
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from suffixsvc import Limits
from suffixsvc.errors import ServiceError, UnknownNamespaceError
from suffixsvc.policies import Policies, Policy
from suffixsvc.service import server as server_module
from suffixsvc_client import ClientConfig
from suffixsvc_follower import Follower, FollowerConfig, FollowerSession, FollowState
from suffixsvc_follower.contents.namespace_copy import NamespaceCopy
from suffixsvc_follower.stream import connection
from support.following import followed, held, logged
from support.long_form import rounds
from support.serving import eventually

#: "small" has a limit, so that the service evicts from it
PATHS = ("acme/sql", "small")
POLICIES = Policies({"small": Policy(max_bytes=20_000)})
LIMITS = Limits(seal_tokens=64, max_store_bytes=1 << 28)
FOLLOWERS = 3
#: quick to try again: faults are many
CONFIG = FollowerConfig(
    client=ClientConfig(step_timeout_s=60, open_timeout_s=60, breaker_pause_s=0.01, breaker_max_pause_s=0.05),
    connect_seconds=60,
)
#: tokens by which an output is recognised: all of its tokens occur in no other
KEY = 4
EXAMPLES = int(os.environ.get("FOLLOWER_EXAMPLES", rounds(3, full=6)))

Tokens = tuple[int, ...]


@pytest.fixture(autouse=True, scope="module")
def _hasty() -> Iterator[None]:
    """Streams that begin again soon, and services that stop soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "_LONGEST_PAUSE", 0.1)
        patch.setattr(server_module, "STOP_GRACE_SECONDS", 0.05)
        yield


class Written:
    """A session, and what was written to it."""

    def __init__(self, session: FollowerSession, follower: int, path: str) -> None:
        self.session, self.follower, self.path = session, follower, path
        self.output: list[int] = []


class FollowerMachine(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="sfx-"))
        self.service = FaultyService(self.folder, LIMITS, POLICIES)
        self.next_token = 1000
        self.open: list[Written] = []
        #: acknowledged outputs by path, which the log must have
        self.kept: dict[str, set[Tokens]] = {path: set() for path in PATHS}
        #: those with a time to live
        self.mortal: set[Tokens] = set()
        self.saved: dict[str, set[Tokens]] | None = None
        #: outputs that these followers hold no more: follower, path, tokens
        self.gone: set[tuple[int, str, Tokens]] = set()

    @initialize(seed=st.integers(0, 2**32 - 1))
    def start(self, seed: int) -> None:
        self.random = Random(seed)
        self.followers = [
            Follower(self.service.address, CONFIG, [(path, "") for path in PATHS]) for _ in range(FOLLOWERS)
        ]

    def tokens(self, count: int) -> list[int]:
        self.next_token += count
        return list(range(self.next_token - count, self.next_token))

    # ------------------------------------------------------------------------------------ what is written

    @rule(follower=st.integers(0, FOLLOWERS - 1), path=st.sampled_from(PATHS), prompt=st.integers(0, 70))
    def open_session(self, follower: int, path: str, prompt: int) -> None:
        namespace = self.followers[follower].namespace(path)
        session = namespace.open_session(self.tokens(prompt))
        assert isinstance(session, FollowerSession)
        self.open.append(Written(session, follower, path))

    @precondition(lambda self: self.open)
    @rule(count=st.integers(KEY, 30), context=st.integers(0, 80), times=st.integers(1, 4))
    def step(self, count: int, context: int, times: int) -> None:
        for _ in range(times):
            written = self.random.choice(self.open)
            if context > 70:
                written.session.append_context(self.tokens(context))
            tokens = self.tokens(count)
            draft = written.session.step(tokens)
            assert not set(draft.token_ids.tolist()) & set(tokens)
            written.output += tokens

    @precondition(lambda self: self.open)
    @rule(commit=st.booleans(), wait=st.booleans())
    def close(self, commit: bool, wait: bool) -> None:
        at = self.random.randrange(len(self.open))
        written = self.open[at]
        try:
            output_id = written.session.close(commit, wait=wait)
        except ServiceError:
            assert not self.service.running
            return
        del self.open[at]
        if output_id is not None:
            self.kept[written.path].add(tuple(written.output))
        elif not commit and wait:
            self.forgotten_by(written.follower, written.path, tuple(written.output))

    @precondition(lambda self: self.open)
    @rule()
    def abandon(self) -> None:
        del self.open[self.random.randrange(len(self.open))]

    @precondition(lambda self: self.service.running)
    @rule(path=st.sampled_from(PATHS), count=st.integers(KEY, 60), ttl=st.sampled_from([0, 0, 1000]))
    def add_output(self, path: str, count: int, ttl: int) -> None:
        tokens = self.tokens(count)
        self.service.cache.namespace(path).add_output(tokens, ttl_seconds=ttl)
        self.kept[path].add(tuple(tokens))
        if ttl:
            self.mortal.add(tuple(tokens))

    # ----------------------------------------------------------------------------------- what is deleted

    @precondition(lambda self: self.service.running)
    @rule(follower=st.integers(0, FOLLOWERS - 1), times=st.integers(1, 3))
    def forget(self, follower: int, times: int) -> None:
        for _ in range(times):
            path = self.random.choice(PATHS)
            outputs = self.outputs(path)
            if not outputs:
                return
            output_id, tokens = self.random.choice(outputs)
            if any(tokens[0] in each.output for each in self.open):
                return  # an incomplete one: its session writes on
            client = self.followers[follower]._parts.client
            receipt = client.namespace(path).delete(output_ids=[output_id]).receipt
            self.kept[path].discard(tokens)
            acknowledged = {name.follower_id for name in receipt.acknowledged}
            for number, each in enumerate(self.followers):
                if each.follower_id in acknowledged:
                    self.forgotten_by(number, path, tokens)

    def forgotten_by(self, follower: int, path: str, tokens: Tokens) -> None:
        if len(tokens) >= KEY:
            self.gone.add((follower, path, tokens))

    @precondition(lambda self: self.service.running)
    @rule()
    def expire(self) -> None:
        self.service.cache.expire(time.time() + 2000)
        for kept in self.kept.values():
            kept -= self.mortal

    @precondition(lambda self: self.service.running)
    @rule()
    def evict(self) -> None:
        self.service.cache.evict()

    @precondition(lambda self: self.service.running)
    @rule(path=st.sampled_from(PATHS))
    def delete_namespace(self, path: str) -> None:
        try:
            self.service.cache.delete_namespace(path, force=True)
        except UnknownNamespaceError:
            return
        self.kept[path] = set()

    @precondition(lambda self: self.service.running)
    @rule(path=st.sampled_from(PATHS), merge=st.booleans())
    def seal(self, path: str, merge: bool) -> None:
        if self.service.cache.has_namespace(path):
            (self.service.cache.compact if merge else self.service.cache.seal)(path)

    # -------------------------------------------------------------------------------------- what breaks

    @rule(follower=st.integers(0, FOLLOWERS - 1))
    def cut_a_follower(self, follower: int) -> None:
        call = self.followers[follower]._parts.connection._call
        if call is not None:
            call.cancel()

    @precondition(lambda self: self.service.running)
    @rule()
    def cut_all(self) -> None:
        self.service.cut()

    @rule(follower=st.integers(0, FOLLOWERS - 1))
    def end_a_lease(self, follower: int) -> None:
        parts = self.followers[follower]._parts
        parts.applier.lease.ends_at = 0.0
        parts.connection.end_lease()

    @precondition(lambda self: self.service.running)
    @rule(killed=st.booleans(), back_up=st.booleans())
    def stop(self, killed: bool, back_up: bool) -> None:
        self.service.stop(killed=killed)
        if back_up:
            self.service.back_up()
            self.saved = {path: set(kept) for path, kept in self.kept.items()}

    @precondition(lambda self: not self.service.running)
    @rule(folder=st.sampled_from(["same", "same", "same", "empty", "older"]))
    def start_again(self, folder: str) -> None:
        if folder == "empty":
            self.service.empty()
            self.kept = {path: set() for path in PATHS}
        elif folder == "older" and self.saved is not None and self.service.data.exists():
            self.service.restore()
            self.kept = {path: set(kept) for path, kept in self.saved.items()}
            self.gone = set()
        self.service.start()

    @precondition(lambda self: self.service.running)
    @rule(killed=st.booleans())
    def restart(self, killed: bool) -> None:
        self.stop(killed, back_up=False)
        self.service.start()

    # ------------------------------------------------------------------------------------- what must hold

    @invariant()
    def nothing_forgotten_is_held(self) -> None:
        for follower, path, tokens in self.gone:
            copy = followed(self.followers[follower], path).copy
            assert copy.index.count(np.array(tokens[:KEY], np.int32)) == 0, (follower, path, tokens)

    @rule()
    def nothing_forgotten_is_drafted(self) -> None:
        for follower, path, tokens in self.random.sample(sorted(self.gone), min(3, len(self.gone))):
            namespace = self.followers[follower].namespace(path)
            with namespace.open_session(tokens[: KEY - 1], private=True) as session:
                assert session.step([]).token_ids.tolist() == []

    @rule()
    def come_to_rest(self) -> None:
        if not self.service.running:
            self.service.start()
        while self.open:
            written = self.open[-1]
            output_id = written.session.close()  # opens the session again, whatever happened
            if output_id is not None:
                self.kept[written.path].add(tuple(written.output))
            self.open.pop()
        eventually(self.nothing_is_sent, "what was written is sent")
        if self.service.cache.stats().sessions:  # discarded while there was no service
            eventually(lambda: self.service.cache.stats().sessions == 0, "sessions are closed")
        for path in PATHS:
            outputs = self.outputs(path)
            times = Counter(tokens for _, tokens in outputs)
            assert not [tokens for tokens, count in times.items() if count > 1]
            if path != "small":
                assert self.kept[path] <= times.keys()
            for follower in self.followers:
                self.wait_until_it_follows(follower, path)
                copy = followed(follower, path).copy
                copy.check()
                counts = copy.consistency_snapshot()
                assert counts is not None
                assert copy.live_sessions == 0
                eventually(partial(counts_hot, copy, outputs), "its hot tokens are counted")

    def nothing_is_sent(self) -> bool:
        for follower in self.followers:
            pending = any(followed(follower, path).copy.pending_writes for path in PATHS)
            if not follower._parts.uplink.idle or pending:
                return False
        return True

    def wait_until_it_follows(self, follower: Follower, path: str) -> None:
        try:
            eventually(lambda: self.follows(follower, path), f"{path} is followed")
        except AssertionError:
            entry = followed(follower, path)
            print(path, follower.state, "generation", entry.generation, "loading", entry.loading is not None)
            print("held", sorted(held(follower, path)), "logged", sorted(logged(self.service.cache, path)))
            print("mirrors", len(entry.copy.mirrors), "position", follower._parts.applier.position)
            raise

    def follows(self, follower: Follower, path: str) -> bool:
        return (
            follower.state is FollowState.FOLLOWING
            and held(follower, path) == logged(self.service.cache, path)
            and not len(followed(follower, path).copy.mirrors)
        )

    def outputs(self, path: str) -> list[tuple[int, Tokens]]:
        if not logged(self.service.cache, path):
            return []
        rows = self.service.cache._parts.store.scan(path)
        return [(each.output_id, tuple(each.output.token_ids.tolist())) for each in rows]

    def teardown(self) -> None:
        try:
            if hasattr(self, "followers"):
                self.come_to_rest()
        finally:
            for follower in getattr(self, "followers", ()):
                follower.close()
            self.service.stop()
            shutil.rmtree(self.folder, ignore_errors=True)


def counts_hot(copy: NamespaceCopy, outputs: list[tuple[int, Tokens]]) -> bool:
    """Whether a copy counts the tokens that no segment holds; a manifest may be on its way."""
    records = [each.record for each in copy.sealed()]
    hot = [len(tokens) for i, tokens in outputs if not any(record.covers(i) for record in records)]
    return copy.stats().hot_tokens == sum(hot)


TestFollowers = FollowerMachine.TestCase
TestFollowers.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

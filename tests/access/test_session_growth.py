"""Sessions that go on stepping stay within the quota of their principal, and take nothing from others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from suffixsvc import SuffixCache
from suffixsvc.access.policy_file import read_policy_file
from suffixsvc.engine.limits.size_estimates import predicted_session_bytes
from suffixsvc.errors import LimitExceededError
from suffixsvc.index.session import UNMEASURED_TOKENS
from suffixsvc_client import EmptyReason
from support.access import ControlledService

QUOTA = 2 << 20
SESSIONS = 8
STEP = 8  #: tokens
POLICY = f"[principals.alice]\nmax_bytes = {QUOTA}\nread = ['shared']\nwrite = ['shared']\n"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ControlledService]:
    policy = tmp_path / "quota.toml"
    policy.write_text(POLICY)
    cache = SuffixCache(policies=read_policy_file(policy).policies)
    with cache, ControlledService(tmp_path, ("alice", "bob"), POLICY).run(cache) as service:
        yield service


def test_steps_are_refused_beyond_the_quota_and_others_go_on(service: ControlledService) -> None:
    """Regression: decode steps were never admitted; sessions with a quota of 20 MiB took 3 GB."""
    rng = np.random.default_rng(1)
    beyond = predicted_session_bytes(0, SESSIONS * UNMEASURED_TOKENS)
    with service.client("alice") as alice, service.client("bob") as bob:
        theirs = bob.namespace("bob/b").open_session([1])
        sessions = [alice.namespace("shared").open_session([1]) for _ in range(SESSIONS)]
        for _ in range(QUOTA // (64 * SESSIONS * STEP)):  # twice the quota
            for each in sessions:
                each.step(rng.integers(0, 150_000, STEP))
            stats = service.cache.principal_stats()["alice"]
            assert stats.held_bytes + stats.session_bytes <= QUOTA + beyond
        assert alice.counts.empty.keys() == {EmptyReason.REFUSED}
        assert stats.session_bytes > 0.7 * QUOTA
        assert stats.refused == SESSIONS
        with pytest.raises(LimitExceededError, match="principal 'alice'"):
            sessions[0].close()  # its text does not fit; it can be closed when there is room, or discarded
        for first in range(0, 4000, STEP):
            theirs.step(list(range(first, first + STEP)))
        assert not bob.counts.empty
        assert theirs.close() is not None
        for each in sessions[1:]:
            each.close(commit=False)
        assert sessions[0].close() is not None, "nothing of it was lost"


def test_outputs_make_room_for_the_sessions_of_their_principal(service: ControlledService) -> None:
    rng = np.random.default_rng(2)
    with service.client("alice") as alice, service.client("bob") as bob:
        theirs = bob.namespace("bob/b").add_output(rng.integers(0, 150_000, 30_000))
        shared = alice.namespace("shared")
        old = [shared.add_output(rng.integers(0, 150_000, 2_000)) for _ in range(14)]
        session = alice.namespace("shared").open_session([1])
        for _ in range(1_500):
            session.step(rng.integers(0, 150_000, STEP))
        assert not alice.counts.empty
        stats = service.cache.principal_stats()["alice"]
        assert 0 < stats.outputs < len(old)
        assert stats.held_bytes + stats.session_bytes <= QUOTA + predicted_session_bytes(0, UNMEASURED_TOKENS)
        assert session.close() is not None
        assert theirs in {row.output_id for row in service.cache._parts.store.scan()}

"""Namespaces of one principal leave room for those of another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from suffixsvc import Limits, NewOutput, SuffixCache
from suffixsvc.errors import LimitExceededError
from suffixsvc_client import SuffixClient
from support.access import ControlledService

MANY = 16
LIMITS = Limits(max_namespaces=MANY)
NOTHING = np.empty(0, np.int32)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ControlledService]:
    controlled = ControlledService(tmp_path, ("alice", "bob"))
    with SuffixCache(limits=LIMITS) as cache, controlled.run(cache, limits=LIMITS) as service:
        yield service


def add(client: SuffixClient, path: str) -> int:
    output = NewOutput(path, np.array([1, 2, 3], np.int32), (3,), NOTHING)
    return client.namespace(path).add_outputs([output])[0]


def until_refused(client: SuffixClient, name: str) -> int:
    for count in range(MANY + 1):
        try:
            add(client, f"{name}/{count}")
        except LimitExceededError as error:
            if f"namespaces of the principal '{name}' must be at most its share" in str(error):
                return count
            raise
    raise AssertionError("no namespace was refused")


def test_namespaces_of_one_principal_leave_some_to_another(service: ControlledService) -> None:
    with service.client("alice") as alice, service.client("bob") as bob:
        assert until_refused(alice, "alice") == MANY // 2
        with pytest.raises(LimitExceededError, match="at most its share"):
            alice.namespace("alice/new").open_session([1])
        assert until_refused(bob, "bob") == MANY // 4
        add(alice, "alice/0")  # those that exist are used as before
        alice.namespace("alice/0").open_session([1]).close(commit=False)


def test_outputs_that_are_deleted_leave_the_namespace_counted(service: ControlledService) -> None:
    with service.client("alice") as alice:
        assert until_refused(alice, "alice") == MANY // 2
        for record in service.cache.namespaces():
            service.cache.namespace(record.path).delete()
        with pytest.raises(LimitExceededError):
            add(alice, "alice/new")
        service.cache.delete_namespace("alice/0")
        add(alice, "alice/new")


def test_sessions_that_end_without_an_output_count_while_they_are_live(service: ControlledService) -> None:
    with service.client("alice") as alice:
        held = [alice.namespace(f"alice/{n}").open_session([1]) for n in range(MANY // 2)]
        with pytest.raises(LimitExceededError, match="at most its share"):
            alice.namespace("alice/new").open_session([1])
        for each in held:
            each.close(commit=False)


def test_a_limit_of_the_policy_and_a_single_principal(service: ControlledService) -> None:
    service.set_policy("[principals.alice]\nmax_namespaces = 2\n")
    with service.client("alice") as alice, service.client("bob") as bob:
        assert until_refused(alice, "alice") == 2
        add(bob, "bob/x")
        service.set_policy("[principals]\n")
        service.revoke("bob")
        for count in range(2, MANY - 1):
            add(alice, f"alice/{count}")
        with pytest.raises(LimitExceededError, match="too many namespaces"):
            add(alice, "alice/new")


def test_namespaces_of_an_earlier_process_count_by_their_outputs(tmp_path: Path) -> None:
    policy = '[principals."*"]\nmax_bytes = "1 MiB"\n'
    controlled = ControlledService(tmp_path, ("alice", "bob"), policy)
    for is_first in (True, False):
        policies = controlled.access.policies
        with (
            SuffixCache(tmp_path / "d", limits=LIMITS, policies=policies) as cache,
            controlled.run(cache, limits=LIMITS) as service,
            service.client("alice") as alice,
        ):
            if is_first:
                assert until_refused(alice, "alice") == MANY // 2
                continue
            add(alice, "alice/0")
            with pytest.raises(LimitExceededError, match="at most its share"):
                add(alice, "alice/new")

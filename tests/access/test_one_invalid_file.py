"""Tokens and policies are two files: while one is invalid, changes of the other take effect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from suffixsvc import SuffixCache
from suffixsvc.errors import InvalidConfigError, PermissionDeniedError, UnauthenticatedError
from support.access import ControlledService

POLICY = '[principals."bob"]\nread = ["alice"]\n'


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ControlledService]:
    with SuffixCache() as cache, ControlledService(tmp_path, ("alice", "bob"), POLICY).run(cache) as service:
        yield service


def test_a_grant_can_be_taken_away_while_the_tokens_are_invalid(service: ControlledService) -> None:
    with service.client("alice") as alice, service.client("bob") as bob:
        alice.namespace("alice/a").add_output([1, 2, 3])
        assert bob.namespace("alice/a").stats().outputs == 1
        service.token_file.path.write_text("garbage")
        with pytest.raises(InvalidConfigError, match="tokens file"):
            service.set_policy("[principals]\n")
        with pytest.raises(PermissionDeniedError):
            bob.namespace("alice/a").stats()
        assert alice.namespace("alice/a").stats().outputs == 1  # by the tokens that were read before


def test_a_token_can_be_revoked_while_the_policy_is_invalid(service: ControlledService) -> None:
    changes: list[None] = []
    service.access.on_change(lambda: changes.append(None))
    with service.client("alice") as alice, service.client("bob") as bob:
        alice.namespace("alice/a").add_output([1, 2, 3])
        with pytest.raises(InvalidConfigError, match="policies file"):
            service.set_policy("garbage")
        with pytest.raises(InvalidConfigError, match="policies file"):
            service.revoke("bob")
        assert changes
        with pytest.raises(UnauthenticatedError):
            bob.namespace("alice/a").stats()
        assert alice.namespace("alice/a").stats().outputs == 1

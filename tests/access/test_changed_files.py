"""Token and policy files that change while a server runs: in part, in place, into something else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from suffixsvc.access.control import AccessControl
from suffixsvc.access.presented import Peer
from suffixsvc.access.principals import Right
from suffixsvc.access.tokens import TokenFile
from suffixsvc.errors import InvalidConfigError, UnauthenticatedError
from suffixsvc.runtime.atomic_file import write_atomically

GRANTS = '[principals."bob"]\nread = ["pool"]\n'
#: without the second table the grant is one on everything in the pool
WHOLE = GRANTS + '[namespaces."pool"]\nmin_principals = 2\n'


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policies.toml"
    path.write_text('[principals."bob"]\n')
    return path


def may_read(access: AccessControl) -> bool:
    return Right.READ in access.rights("bob", "pool")


def test_a_file_that_is_being_written_is_not_used(policy: Path) -> None:
    access = AccessControl(policy=policy)
    with policy.open("w") as file:
        file.write(GRANTS)
        file.flush()
        access.refresh()
        assert not may_read(access)
        file.write(WHOLE[len(GRANTS) :])
    access.refresh()
    assert not may_read(access), "it has changed since the last look"
    access.refresh()
    assert may_read(access)
    assert access.policies.of("pool").min_principals == 2


def test_a_replaced_file_is_used_at_once(policy: Path) -> None:
    access = AccessControl(policy=policy)
    write_atomically(policy, WHOLE)
    access.refresh()
    assert may_read(access)


@pytest.mark.parametrize("text", ["", "[default]\nttl = 5\n"])
def test_a_file_that_has_lost_its_principals_is_not_used(policy: Path, text: str) -> None:
    write_atomically(policy, WHOLE)
    access = AccessControl(policy=policy)
    write_atomically(policy, text)
    for _ in range(2):
        with pytest.raises(InvalidConfigError, match=r"must have a table \[principals\], as it had before"):
            access.refresh()
        assert may_read(access)
    write_atomically(policy, text + "[principals]\n")  # the remedy
    access.refresh()
    assert not may_read(access)


def test_a_pipe_holds_up_nothing(policy: Path, tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.toml")
    token = file.create("bob")
    access = AccessControl(file, policy)
    kept = file.path.rename(tmp_path / "kept")
    os.mkfifo(file.path)
    policy.unlink()
    os.mkfifo(policy)
    with pytest.raises(InvalidConfigError, match="must be a regular file"):
        access.refresh()
    assert access.authenticate(token, (), Peer.LOOPBACK).principal == "bob"
    with pytest.raises(UnauthenticatedError):
        access.authenticate("sfx_aaaaaaaaaa_x", (), Peer.LOOPBACK)
    file.path.unlink()
    kept.rename(file.path)
    with pytest.raises(InvalidConfigError, match=r"policies\.toml"):
        access.refresh()
    assert access.authenticate(token, (), Peer.LOOPBACK).principal == "bob"


def test_an_invalid_file_of_tokens_is_not_read_for_every_unknown_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = TokenFile(tmp_path / "tokens.toml")
    file.create("bob")
    access = AccessControl(file)
    write_atomically(file.path, "tokens = 7\n")
    reads = 0
    read = TokenFile.read

    def counted(self: TokenFile) -> object:
        nonlocal reads
        reads += 1
        return read(self)

    monkeypatch.setattr(TokenFile, "read", counted)
    for _ in range(5):
        with pytest.raises(UnauthenticatedError):
            access.authenticate("sfx_aaaaaaaaaa_x", (), Peer.LOOPBACK)
    assert reads == 1

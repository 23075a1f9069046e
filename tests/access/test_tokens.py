"""Files of tokens: their form, concurrent changes, and what a presented token is worth."""

from __future__ import annotations

import multiprocessing
import os
import re
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from suffixsvc.access.tokens import TokenFile, Tokens
from suffixsvc.errors import InvalidConfigError, InvalidInputError

NOW = datetime.now(UTC)
GOLDEN = Path(__file__).parent.parent / "golden" / "access" / "tokens.toml"
#: the token of GOLDEN that does not expire
GOLDEN_TOKEN = "sfx_aaaaaaaaaa_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"


def test_a_token_is_found_by_its_whole_text_only(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "t.toml")
    first, second = file.create("alice"), file.create("bob")
    tokens = file.read()
    assert len(tokens) == 2
    found = tokens.find(first, NOW)
    assert found is not None
    assert found.principal == "alice"
    assert tokens.find(second, NOW) != found
    altered = first[:-1] + ("A" if first[-1] != "A" else "B")
    mixed = f"{'_'.join(first.split('_')[:2])}_{second.split('_', 2)[2]}"
    for wrong in (
        "",
        "sfx",
        "sfx_",
        altered,
        first + "A",
        first[:-1],
        mixed,
        "x" * 10_000,
        "sfx__",
        "\ud800",
        "ä",
    ):
        assert tokens.find(wrong, NOW) is None, wrong


def test_the_file_holds_no_token(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "t.toml")
    text = file.create("alice")
    secret = text.split("_", 2)[2]
    assert len(secret) >= 43
    assert secret not in file.path.read_text()
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert repr(file.read().find(text, NOW)).count(secret) == 0


def test_the_form_of_a_file_is_the_golden_one(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "t.toml")
    file.path.write_bytes(GOLDEN.read_bytes())
    file.path.chmod(0o600)
    tokens = file.read()
    never, ends = tokens
    assert tokens.find(GOLDEN_TOKEN, NOW) == never
    assert (never.principal, never.expires) == ("alice", None)
    assert ends.expires == datetime(2026, 2, 1, 12, 30, tzinfo=UTC)
    assert not ends.is_valid(NOW)
    file.create("x")
    file.revoke([next(t.id for t in file.read() if t.principal == "x")])
    assert file.path.read_bytes() == GOLDEN.read_bytes()


def test_a_token_expires(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "t.toml")
    text = file.create("alice", timedelta(seconds=60))
    tokens = file.read()
    assert tokens.find(text, datetime.now(UTC)) is not None
    assert tokens.find(text, datetime.now(UTC) + timedelta(seconds=61)) is None
    [token] = tokens
    assert not tokens.holds(token.id, datetime.now(UTC) + timedelta(seconds=61))


def test_revoking_removes_all_or_nothing(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "t.toml")
    first, second = file.create("alice"), file.create("alice")
    with pytest.raises(InvalidInputError, match="nothere"):
        file.revoke([first, "nothere"])
    assert len(file.read()) == 2
    assert [token.principal for token in file.revoke([first])] == ["alice"]
    assert file.read().find(first, NOW) is None
    assert file.read().find(second, NOW) is not None


@pytest.mark.parametrize("name", ["", "*", "a/b", "a b", "..", "x" * 65, "a\n", 'a"b', "ä"])
def test_names_of_principals(tmp_path: Path, name: str) -> None:
    file = TokenFile(tmp_path / "t.toml")
    with pytest.raises(InvalidConfigError, match="principal must be a name"):
        file.create(name)
    assert not file.path.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version = 2", "version must be that of this release"),
        ("tokens = 1", "version"),
        (
            f"version=1\n[tokens.short]\nprincipal='a'\nsha256='{'0' * 64}'\ncreated=2026-01-01T00:00:00Z",
            "10 lower-case",
        ),
        ("version = 1\n[tokens.aaaaaaaaaa]\nprincipal = 'a/b'", "aaaaaaaaaa"),
        (
            "version = 1\n[tokens.aaaaaaaaaa]\nprincipal='a'\nsha256='00'\ncreated=2026-01-01T00:00:00Z",
            "sha256",
        ),
        (
            "version = 1\n[tokens.aaaaaaaaaa]\nprincipal='a'\n"
            f"sha256='{'0' * 64}'\ncreated=2026-01-01T00:00:00",
            "offset",
        ),
        ("version = 1\nother = 2", "other"),
        ("not toml", "valid TOML"),
    ],
)
def test_an_invalid_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = TokenFile(tmp_path / "t.toml")
    file.path.write_text(text)
    file.path.chmod(0o600)
    with pytest.raises(InvalidConfigError, match=message):
        file.read()
    with pytest.raises(InvalidConfigError, match=message):
        file.create("alice")  # a file that is not understood is not replaced
    assert file.path.read_text() == text


def test_a_file_that_others_can_write_is_refused(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "t.toml")
    file.create("alice")
    file.path.chmod(0o620)
    with pytest.raises(InvalidConfigError, match="writable by its owner only"):
        file.read()


def _create(path: Path, number: int) -> None:
    for _ in range(5):
        TokenFile(path).create(f"p{number}")


def test_concurrent_changes_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_create, args=(path, number)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert sorted(token.principal for token in TokenFile(path).read()) == [
        f"p{n}" for n in (0, 1, 2) for _ in range(5)
    ]
    assert re.fullmatch(r"[a-z0-9]{10}", next(iter(TokenFile(path).read())).id)


def test_a_missing_file_has_no_tokens(tmp_path: Path) -> None:
    assert len(TokenFile(tmp_path / "none").read()) == 0
    assert Tokens().find("sfx_a_b", NOW) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_that_root_writes_belongs_to_the_owner_of_its_folder(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    file = TokenFile(tmp_path / "t.toml")
    file.create("alice")
    assert file.path.stat().st_uid == 12345
    assert (tmp_path / "t.toml.lock").stat().st_uid == 12345

"""Bearer tokens: random secrets that stand for principals, of which a file holds hashes only.

A token is ``sfx_ID_SECRET``: 10 letters and digits that identify it, then 32 random bytes in base64url. Its
file is TOML, so that an operator can read it; :class:`TokenFile` writes it, one process at a time.
A secret of 256 random bits needs no slow hash: SHA-256 cannot be inverted by trying.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import stat
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from suffixsvc.access.principals import validate_principal
from suffixsvc.errors import InvalidConfigError, InvalidInputError
from suffixsvc.runtime.atomic_file import atomic_file

FORMAT_VERSION: Final = 1
#: name of the file in a data folder
TOKENS_FILE: Final = "tokens.toml"
_PREFIX: Final = "sfx"
_ID_CHARACTERS: Final = string.ascii_lowercase + string.digits
_ID: Final = re.compile(r"[a-z0-9]{10}")
_SECRET_BYTES: Final = 32
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
#: longer texts are refused unread
_MAX_CHARACTERS: Final = 128
_HEADER: Final = """\
# Tokens of suffixsvc, by their ids. Written by `suffixsvc token`; it holds hashes, no secrets.
version = {version}
"""
_TABLE: Final = """
[tokens.{id}]
principal = "{principal}"
sha256 = "{sha256}"
created = {created}
"""


@dataclass(frozen=True, slots=True)
class Token:
    """What is known of a token.

    Attributes:
        id: public part, which logs and errors name.
        principal: whom it stands for.
        sha256: hexadecimal hash of the whole token.
        created: time of its creation.
        expires: time from which it is refused; None: never.
    """

    id: str
    principal: str
    sha256: str
    created: datetime
    expires: datetime | None = None

    def is_valid(self, now: datetime) -> bool:
        """Whether the token is accepted at a time."""
        return self.expires is None or now < self.expires


class Tokens:
    """The tokens of a file. Immutable, thread-safe."""

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self._by_id = {token.id: token for token in tokens}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Token]:
        return iter(self._by_id.values())

    def find(self, presented: str, now: datetime) -> Token | None:
        """The token that a caller presents; None unless it is known, unaltered and not expired."""
        if len(presented) > _MAX_CHARACTERS:
            return None
        prefix, _, rest = presented.partition("_")
        token = self._by_id.get(rest.partition("_")[0]) if prefix == _PREFIX else None
        digest = hashlib.sha256(presented.encode("utf-8", "surrogatepass")).hexdigest()
        if token is None or not hmac.compare_digest(digest, token.sha256):
            return None
        return token if token.is_valid(now) else None

    def holds(self, token_id: str, now: datetime) -> bool:
        """Whether a token that was presented before is still accepted."""
        token = self._by_id.get(token_id)
        return token is not None and token.is_valid(now)


class TokenFile:
    """A file of tokens, changed by one process at a time and replaced atomically.

    Args:
        path: of the file, which need not exist. Its lock is ``PATH.lock``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Tokens:
        """The tokens of the file; none if it does not exist.

        Raises:
            InvalidConfigError: names the file, and the invalid line or key; other users may write to it.
        """
        from suffixsvc.settings import read_toml  # noqa: PLC0415 - pydantic is slow to load

        try:
            mode = self.path.stat().st_mode
        except FileNotFoundError:
            return Tokens()
        except OSError as error:
            raise InvalidConfigError(
                f"tokens file {self.path} must be readable", got=error.strerror
            ) from None
        if stat.S_IMODE(mode) & (stat.S_IWGRP | stat.S_IWOTH):
            raise InvalidConfigError(
                f"tokens file {self.path} must be writable by its owner only",
                got=f"mode {stat.S_IMODE(mode):04o}",
                remedy=f"chmod 600 {self.path}",
            )
        read = read_toml(_File, self.path, "tokens file")
        return Tokens(table.token(name) for name, table in read.tokens.items())

    def create(self, principal: str, lifetime: timedelta | None = None) -> str:
        """Add a token, and return it: its only copy, because the file holds a hash.

        Args:
            principal: whom it stands for.
            lifetime: time until it is refused; None: for ever.

        Raises:
            InvalidConfigError: the name, the lifetime or the file is invalid.
            OSError: the file cannot be written.
        """
        validate_principal(principal)
        if lifetime is not None and lifetime <= timedelta():
            raise InvalidConfigError("the lifetime of a token must be positive", got=lifetime)
        now = datetime.now(UTC).replace(microsecond=0)
        with self._locked() as tokens:
            known = {token.id for token in tokens}
            token_id = next(name for name in iter(_new_id, "") if name not in known)
            text = f"{_PREFIX}_{token_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
            digest = hashlib.sha256(text.encode()).hexdigest()
            try:
                expires = None if lifetime is None else now + lifetime
            except OverflowError:
                raise InvalidConfigError(
                    "the lifetime of a token must end before the year 10000", got=lifetime
                ) from None
            self._write([*tokens, Token(token_id, principal, digest, now, expires)])
        return text

    def revoke(self, token_ids: Iterable[str]) -> list[Token]:
        """Remove tokens, and return them. A running service refuses them from then on.

        Args:
            token_ids: ids, or whole tokens.

        Raises:
            InvalidInputError: an id is not in the file; nothing was removed.
        """
        wanted = {_id_of(each) for each in token_ids}
        with self._locked() as tokens:
            if unknown := wanted - {token.id for token in tokens}:
                raise InvalidInputError(
                    f"the id of a token must be in {self.path}",
                    got=", ".join(sorted(unknown))[:200],
                    remedy="`suffixsvc token list` shows the ids.",
                )
            self._write(token for token in tokens if token.id not in wanted)
            return [token for token in tokens if token.id in wanted]

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Tokens]:
        """Exclude other writers for the block."""
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _give_to_owner(lock, self.path.absolute().parent)
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self.read()
        finally:
            os.close(lock)

    def _write(self, tokens: Iterable[Token]) -> None:
        parts = [_HEADER.format(version=FORMAT_VERSION)]
        for token in tokens:
            parts.append(
                _TABLE.format(
                    id=token.id,
                    principal=token.principal,
                    sha256=token.sha256,
                    created=_time(token.created),
                )
            )
            if token.expires is not None:
                parts.append(f"expires = {_time(token.expires)}\n")
        with atomic_file(self.path, 0o600) as file:
            _give_to_owner(file.fileno(), self.path.parent)
            file.write("".join(parts).encode())


@dataclass(frozen=True, slots=True)
class _Table:
    principal: str
    sha256: str
    created: datetime
    expires: datetime | None = None

    def __post_init__(self) -> None:
        validate_principal(self.principal)
        if not _SHA256.fullmatch(self.sha256):
            raise InvalidConfigError("sha256 must be 64 hexadecimal digits", got=repr(self.sha256)[:80])
        for name, time in (("created", self.created), ("expires", self.expires)):
            if time is not None and time.tzinfo is None:
                raise InvalidConfigError(
                    f"{name} must have an offset", expected="2026-01-31T12:00:00Z", got=time
                )

    def token(self, token_id: str) -> Token:
        return Token(token_id, self.principal, self.sha256, self.created, self.expires)


@dataclass(frozen=True, slots=True)
class _File:
    version: int
    tokens: dict[str, _Table] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.version != FORMAT_VERSION:
            raise InvalidConfigError(
                "version must be that of this release", expected=FORMAT_VERSION, got=self.version
            )
        for name in self.tokens:
            if not _ID.fullmatch(name):
                raise InvalidConfigError(
                    "tokens must have ids of 10 lower-case letters and digits", got=repr(name)[:80]
                )


def _give_to_owner(descriptor: int, folder: Path) -> None:
    """Give a file that root writes to the owner of its folder, whose server reads it."""
    if os.geteuid() == 0:
        owner = folder.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _new_id() -> str:
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(10))


def _id_of(text: str) -> str:
    """The id of a token, given it or the whole token."""
    parts = text.split("_", 2)
    return parts[1] if len(parts) == 3 and parts[0] == _PREFIX else text


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")

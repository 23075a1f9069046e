"""Principals of requests, by API key; a server without keys serves programs of this machine only.

A server without keys is on a loopback address, which pages in a browser of this machine can reach too: a page
of another host can send a request, or resolve its own name to 127.0.0.1. Such requests carry the page's
Origin, or that host's name, and are refused.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import tomllib
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from suffixsvc.config import validate_namespace
from suffixsvc.errors import InvalidConfigError, InvalidNamespaceError
from suffixsvc_openai.protocol.errors import ApiError

#: principal of a server without keys
LOCAL: Final = "local"
MIN_KEY_CHARACTERS: Final = 8
#: bytes of a principal's name, so that namespaces have room for the rest
MAX_PRINCIPAL_BYTES: Final = 64
_FORM: Final = '"sk-..." = "NAME" in a table [keys]'


class Keys:
    """API keys and the principals that they stand for.

    Args:
        principals: key -> principal; None for a server without keys, whose only principal is LOCAL.

    Attributes:
        principals: number of principals.
    """

    def __init__(self, principals: Mapping[str, str] | None = None) -> None:
        self.required = principals is not None
        self.principals = len(set(principals.values())) if principals else 1
        self._digests = [(_digest(key), name) for key, name in (principals or {}).items()]

    def principal(self, headers: Mapping[str, str]) -> str:
        """Return the principal of a request.

        Raises:
            ApiError: 401 for a missing or unknown key; without keys, 403 for a page of another host.
        """
        if not self.required:
            _require_own(headers)
            return LOCAL
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise _refused("an API key must be given", "Send the header 'Authorization: Bearer KEY'.")
        presented, found = _digest(key.strip()), ""
        for digest, name in self._digests:  # all of them: the time does not depend on the key
            if hmac.compare_digest(digest, presented):
                found = name
        if not found:
            raise _refused("the API key must be in the file of --api-keys, as it was read at the start", None)
        return found


def read_keys(path: Path | None) -> Keys:
    """Read a TOML file whose table ``keys`` maps each key to a principal.

    Args:
        path: the file; None for a server without keys.

    Raises:
        InvalidConfigError: the file is unreadable or malformed, or a key or name is invalid.
    """
    if path is None:
        return Keys()
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfigError(
            "--api-keys must be a readable file", got=f"{path}: {error.strerror}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfigError(
            "--api-keys must be a TOML file", expected=_FORM, got=f"{path}: {error}"
        ) from None
    keys = table.get("keys")
    if set(table) != {"keys"} or not isinstance(keys, dict) or not keys:
        raise InvalidConfigError("--api-keys must have one table 'keys'", expected=_FORM, got=sorted(table))
    for key, name in keys.items():
        if len(key) < MIN_KEY_CHARACTERS or not key.isascii() or not key.isprintable() or " " in key:
            raise InvalidConfigError(
                f"a key of --api-keys must have {MIN_KEY_CHARACTERS} or more ASCII characters, no blanks",
                got=f"{len(key)} characters",
            )
        _check_principal(name)
    return Keys(keys)


def _check_principal(name: object) -> None:
    expected = f"a name without '/', at most {MAX_PRINCIPAL_BYTES} bytes"
    if not isinstance(name, str) or "/" in name or len(name.encode()) > MAX_PRINCIPAL_BYTES:
        raise InvalidConfigError(
            "a principal of --api-keys must be a name", expected=expected, got=repr(name)[:80]
        )
    try:
        validate_namespace(name)
    except InvalidNamespaceError as error:
        raise InvalidConfigError(
            "a principal of --api-keys must be a name", expected=expected, got=error.got
        ) from None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _refused(message: str, remedy: str | None) -> ApiError:
    return ApiError(HTTPStatus.UNAUTHORIZED, message, code="invalid_api_key", remedy=remedy)


def _require_own(headers: Mapping[str, str]) -> None:
    """Raise ApiError for a request of a page that is not of this machine."""
    origin = headers.get("origin")
    for header, host in (("Host", f"//{headers.get('host', '')}"), ("Origin", origin)):
        if host is not None and not _is_loopback(host):
            raise ApiError(
                HTTPStatus.FORBIDDEN,
                f"the header {header} must name this machine, on a server without API keys",
                code="origin_not_allowed",
                got=host.removeprefix("//")[:80],
                remedy="Use http://127.0.0.1:PORT, or start the server with --api-keys.",
            )


def _is_loopback(url: str) -> bool:
    try:
        name = urlsplit(url).hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False

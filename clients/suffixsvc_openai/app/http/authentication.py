"""Who sends a request: a bearer token, or a client certificate; a server without either serves this machine.

Such a server is on a loopback address, which pages in a browser of this machine can reach too: a page of
another host can send a request, or resolve its own name to 127.0.0.1. Such requests carry the page's Origin,
or that host's name, and are refused.
"""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from fastapi import Request
from starlette.datastructures import Headers

from suffixsvc.access.caller import Caller
from suffixsvc.access.control import AccessControl
from suffixsvc.access.presented import bearer_token, peer_at
from suffixsvc.access.principals import OPERATOR, Right
from suffixsvc.errors import PermissionDeniedError, UnauthenticatedError
from suffixsvc_openai.protocol.errors import ApiError, of_exception

#: principal of a server without access control
LOCAL: Final = "local"
#: key of a request's state: names in the certificate of its client
CERTIFICATE_NAMES: Final = "certificate_names"


class Authentication:
    """Authenticates the requests of one server. Thread-safe.

    Args:
        access: the tokens and the policy.
    """

    def __init__(self, access: AccessControl) -> None:
        self._access = access
        self._count()
        access.on_change(self._count)

    def _count(self) -> None:
        self._principals = max(1, len(self._access.principals))

    @property
    def required(self) -> bool:
        """Whether requests need a token or a certificate."""
        return self._access.required

    def principals(self) -> int:
        """Number of principals at this moment."""
        return self._principals if self.required else 1

    def caller(self, request: Request) -> Caller:
        """Return who sends a request, and note it in its state.

        Raises:
            ApiError: 401 without a valid token or certificate; 403 for a page of another host, without access
                control.
        """
        access, token = self._access, None
        if not self.required:  # any key is accepted, and ignored
            _require_own(request.headers, any_host=access.insecure_network)
        try:
            if self.required:
                token = bearer_token(request.headers.getlist("authorization"))
            names = getattr(request.state, CERTIFICATE_NAMES, ())
            peer = peer_at("" if request.client is None else request.client.host)
            found = access.authenticate(token, names, peer)
        except UnauthenticatedError as error:
            raise of_exception(error) from None
        if found.principal == OPERATOR:
            found = replace(found, principal=LOCAL)
        request.state.caller = found
        return found

    def is_valid(self, caller: Caller) -> bool:
        """Whether the credential of a caller would still be accepted."""
        return self._access.is_valid(caller)

    def sees_all(self, caller: Caller) -> bool:
        """Whether a caller may see numbers and metrics, which are those of all principals."""
        return not self.required or caller.may_everywhere(Right.ADMIN)

    def require_all(self, caller: Caller, what: str) -> None:
        """Raise ApiError, 403, unless :meth:`sees_all`; ``what`` needs it."""
        if not self.sees_all(caller):
            try:
                caller.require_everywhere(Right.ADMIN, what)
            except PermissionDeniedError as error:
                raise of_exception(error) from None


def _require_own(headers: Headers, *, any_host: bool) -> None:
    """Raise ApiError for a request of a page that is not of this machine.

    Args:
        headers: of the request.
        any_host: the server is open to a network, where it has other names; a page must be its own.
    """
    origin, host = headers.get("origin"), headers.get("host", "")
    if any_host and (origin is None or origin.partition("//")[2] == host):
        return
    for header, named in (("Host", f"//{host}"), ("Origin", origin)):
        if named is not None and not _is_loopback(named):
            raise ApiError(
                HTTPStatus.FORBIDDEN,
                f"the header {header} must name this machine, on a server without tokens",
                code="origin_not_allowed",
                got=named.removeprefix("//")[:80],
                remedy="Use http://127.0.0.1:PORT, or start the server with --tokens.",
            )


def _is_loopback(url: str) -> bool:
    try:
        name = urlsplit(url).hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False

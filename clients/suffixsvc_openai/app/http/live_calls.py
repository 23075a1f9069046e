"""Calls in progress, by who sent them: they end when the credential is revoked or expires."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

import structlog

from suffixsvc.access.caller import Caller
from suffixsvc.errors import UnauthenticatedError
from suffixsvc_openai.app.http.authentication import Authentication
from suffixsvc_openai.engine.call import Call

_log = structlog.get_logger(__name__)
_REMEDY: Final = "Send the request again with a valid token."


class LiveCalls:
    """The calls in progress. Thread-safe.

    Args:
        authentication: says whether a credential is still valid.
        cancel: ends the answers of a call.
    """

    def __init__(self, authentication: Authentication, cancel: Callable[[Call], None]) -> None:
        self._authentication, self._cancel = authentication, cancel
        self._lock = threading.Lock()
        # weak: a call lasts as long as its response
        self._calls: WeakKeyDictionary[Call, Caller] = WeakKeyDictionary()

    def add(self, call: Call, caller: Caller) -> None:
        """Have a call ended if the credential of its caller is revoked."""
        with self._lock:
            self._calls[call] = caller

    def end_revoked(self) -> int:
        """End the calls whose credential is not valid any more; returns how many."""
        with self._lock:
            calls = list(self._calls.items())
            revoked = [(call, by) for call, by in calls if not self._authentication.is_valid(by)]
            for call, _ in revoked:
                del self._calls[call]
        for call, by in revoked:
            call.fail(UnauthenticatedError("the token was revoked or has expired", remedy=_REMEDY))
            self._cancel(call)
            _log.info("a call was ended: its credential is revoked", principal=by.principal)
        return len(revoked)

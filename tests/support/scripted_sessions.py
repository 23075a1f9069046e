"""Helpers of tests that draft with a scripted llama-server."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from suffixsvc.types import Draft
from suffixsvc_driver.workers.client.session import WorkerSession

PATIENT = 300.0


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def ask_again(session: WorkerSession, count: int = 3) -> Draft:
    """Ask until there is a draft: after a failure the server is left alone for a moment."""
    found: list[Draft] = []

    def asked() -> bool:
        found[:] = [session.draft(count, PATIENT)]
        return len(found[0]) > 0

    until(asked)
    return found[0]

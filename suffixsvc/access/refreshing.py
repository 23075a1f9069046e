"""Changes of tokens and policies, which take effect while a server runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from suffixsvc.access.control import AccessControl
from suffixsvc.errors import InvalidConfigError
from suffixsvc.runtime.background import PeriodicTask

log = structlog.get_logger(__name__)

#: time within which a change takes effect
ACCESS_PERIOD_SECONDS: Final = 1.0


def refreshing(access: AccessControl, end_revoked: Callable[[], object]) -> PeriodicTask:
    """The task that reads changed files, then ends what their changes or the time have revoked.

    An invalid file is logged once, and read again until it is valid; what was read before stays in use.

    Args:
        access: whose files are read.
        end_revoked: called every :data:`ACCESS_PERIOD_SECONDS`, as a token may also have expired.
    """
    reported = ""

    def run() -> None:
        nonlocal reported
        try:
            access.refresh()
            reported = ""
        except InvalidConfigError as error:
            if str(error) != reported:
                reported = str(error)
                log.warning("tokens or policies are invalid; those before stay in use", error=reported)
        end_revoked()

    return PeriodicTask(
        "access", run, period_seconds=ACCESS_PERIOD_SECONDS, longest_pause_seconds=ACCESS_PERIOD_SECONDS
    )

"""Settings of a client, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from suffixsvc.errors import InvalidConfigError

__all__ = ["ClientConfig"]


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """How long a client waits, and when it stops asking.

    A step that is not answered in time costs its caller ``step_timeout_s`` and nothing else, so set it
    below what one decode step of the target takes.
    """

    #: what one step may cost its caller; then the draft is empty and the late answer is dropped
    step_timeout_s: float = 0.05
    #: what opening a session may cost its caller; then it opens in the background
    open_timeout_s: float = 1.0
    #: closing, bulk loading, questions: calls whose answer matters
    call_timeout_s: float = 30.0
    #: consecutive failures after which nobody asks the service any more
    breaker_failures: int = 5
    #: first pause of the breaker; it doubles with every failed probe, up to the next
    breaker_pause_s: float = 0.25
    breaker_max_pause_s: float = 8.0
    #: sessions of ``unix:PATH`` pass gRPC by where the service has a direct socket (the blocking client only)
    direct: bool = True
    #: user id of the service at ``unix:PATH``, where that is not this user, root or the owner of the socket's
    #: folder: nothing is sent to a process of any other user
    service_uid: int | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "service_uid":
                if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                    raise InvalidConfigError(
                        "service_uid must be a user id", expected="an int >= 0, or None", got=repr(value)
                    )
                continue
            if f.name == "direct":
                if not isinstance(value, bool):
                    raise InvalidConfigError("direct makes no sense", expected="a bool", got=repr(value))
                continue
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not (math.isfinite(value) and value > 0)
            ):
                raise InvalidConfigError(
                    f"{f.name} makes no sense", expected="a positive number", got=repr(value)
                )

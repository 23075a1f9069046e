"""Configuration of a client, checked when it is created."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from suffixsvc.errors import InvalidConfigError
from suffixsvc.transport.identity import ClientIdentity


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Timeouts and circuit breaker of a client.

    A step that is not answered in time delays its caller by ``step_timeout_s``: set it below the duration of
    a decode step of the target.
    """

    #: longest time a step waits; after it the draft is empty and a late answer is dropped
    step_timeout_s: float = 0.05
    #: longest time the opening of a session waits; after it the session opens in the background
    open_timeout_s: float = 1.0
    #: timeout of all other calls: closing, bulk loading, queries
    call_timeout_s: float = 30.0
    #: consecutive failures that open the circuit breaker
    breaker_failures: int = 5
    #: first pause of the breaker; it doubles after every failed probe: up to ``breaker_max_pause_s`` while
    #: the service does not answer in time, and up to a second while it cannot be reached and for 30 s after
    breaker_pause_s: float = 0.25
    #: also the longest time that a client waits whose messages a rate of the service refuses
    breaker_max_pause_s: float = 8.0
    #: user id of the service at ``unix:PATH``, if not this user, root or the owner of the socket's folder;
    #: nothing is sent to a process of any other user
    service_uid: int | None = None
    #: token and certificates; None: those that the environment names (suffixsvc.transport.identity)
    identity: ClientIdentity | None = None

    @property
    def chosen_identity(self) -> ClientIdentity:
        """The identity, or that of the environment. InvalidConfigError: a variable is invalid."""
        return ClientIdentity.from_environment() if self.identity is None else self.identity

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if f.name == "identity":
                valid, condition = (
                    value is None or isinstance(value, ClientIdentity),
                    "a ClientIdentity or None",
                )
            elif f.name == "service_uid":
                valid = value is None or (number and isinstance(value, int) and value >= 0)
                condition = "a user id or None"
            else:
                valid, condition = number and math.isfinite(value) and value > 0, "a positive number"
            if not valid:
                raise InvalidConfigError(f"{f.name} must be {condition}", got=repr(value))

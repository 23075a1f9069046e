"""Rates and sizes of what a principal may send.

A token bucket per principal and quantity, refilled at its rate and holding one second of it. A message is
admitted while its buckets hold at least 1, and may take more than they hold: then later ones wait until the
debt is paid. So no message is too large for a rate, and a refused one can say when to come back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

from suffixsvc.access.refusals import Refusals
from suffixsvc.errors import InvalidConfigError, LimitExceededError

#: bytes of a message that count as one token
BYTES_PER_TOKEN: Final = 4
_LARGEST: Final = 2**53
#: default of ``max_unmatched_tokens``
MAX_UNMATCHED_TOKENS: Final = 300.0


@dataclass(frozen=True, slots=True)
class PrincipalLimits:
    """Limits of one principal; None: there is none.

    Attributes:
        requests_per_second: messages, the steps of one message together.
        tokens_per_second: four bytes of a message count as one.
        max_sessions: live sessions.
        max_message_bytes: size of a message.
        max_unmatched_tokens: drafted tokens of shared text that its sessions do not answer, or that match
            less often than predicted (docs/security.md#probing); None: :data:`MAX_UNMATCHED_TOKENS`.
        max_namespaces: namespaces that it has created.
    """

    requests_per_second: float | None = None
    tokens_per_second: float | None = None
    max_sessions: int | None = None
    max_message_bytes: int | None = None
    max_unmatched_tokens: float | None = None
    max_namespaces: int | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and not (type(value) in (int, float) and 0 < value <= _LARGEST):
                raise InvalidConfigError(f"{each.name} must be a positive number", got=repr(value)[:80])

    def over(self, above: PrincipalLimits) -> PrincipalLimits:
        """These limits, with those that are None taken from ``above``."""
        return PrincipalLimits(
            *(
                getattr(above, each.name) if (own := getattr(self, each.name)) is None else own
                for each in fields(self)
            )
        )

    @property
    def bounds_messages(self) -> bool:
        """Whether anything is counted when a message comes."""
        return (self.requests_per_second, self.tokens_per_second, self.max_message_bytes) != (None,) * 3


class RateLimiter:
    """The buckets of the principals. Thread-safe.

    Args:
        clock: seconds, monotonic.

    Attributes:
        refusals: counts of what was refused.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.refusals = Refusals(clock)
        self._lock = threading.Lock()
        #: (principal, quantity) -> level, and the time of it
        self._buckets: dict[tuple[str, str], tuple[float, float]] = {}

    def admit(self, principal: str, limits: PrincipalLimits, size_bytes: int) -> None:
        """Count a message.

        Raises:
            LimitExceededError: it is too large; or its principal sends too much, and ``retry_after_s`` says
                when the next message is admitted. Nothing was counted.
        """
        most = limits.max_message_bytes
        if most is not None and size_bytes > most:
            self.refusals.count(principal, "max_message_bytes")
            raise LimitExceededError(
                f"messages of the principal {principal!r} must be smaller",
                expected=f"at most {most} bytes",
                got=f"{size_bytes} bytes",
                remedy="Send smaller messages.",
            )
        charges = [
            (name, rate, amount)
            for name, rate, amount in (
                ("requests", limits.requests_per_second, 1.0),
                ("tokens", limits.tokens_per_second, size_bytes / BYTES_PER_TOKEN),
            )
            if rate is not None
        ]
        now = self._clock()
        with self._lock:
            levels, waits = {}, []
            for name, rate, amount in charges:
                full = max(rate, 1.0)
                level, at = self._buckets.get((principal, name), (full, now))
                level = min(full, level + max(0.0, now - at) * rate)
                levels[principal, name] = level - amount, now
                missing = min(1.0, amount) - level
                if missing > 0:
                    waits.append((missing / rate, name, rate))
            if not waits:
                self._buckets.update(levels)
                return
        seconds, name, rate = max(waits)
        self.refusals.count(principal, f"{name}_per_second")
        raise _too_fast(principal, seconds, name, rate)


def _too_fast(principal: str, seconds: float, quantity: str, rate: float) -> LimitExceededError:
    wait = max(seconds * 1.001, 0.001)  # rounding must not make the message come too soon again
    error = LimitExceededError(
        f"{quantity} of the principal {principal!r} must be at most {rate:g} per second",
        got="more",
        remedy=f"Send again in {wait:.3f} s.",
    )
    error.retry_after_s = wait
    return error

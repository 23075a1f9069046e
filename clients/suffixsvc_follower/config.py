"""Configuration of a follower, checked when it is created."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from pathlib import Path

from suffixsvc.errors import InvalidConfigError
from suffixsvc_client import ClientConfig


@dataclass(frozen=True, slots=True)
class FollowerConfig:
    """Limits and timers of a follower.

    Attributes:
        client: timeouts of what is sent to the service, and of steps where the service drafts.
        max_hot_bytes: memory of the outputs of a namespace that no segment holds; of more, the newest are
            kept. None: no limit.
        segment_cache: folder of segments that are fetched from a service on another host; None: one in the
            user's cache folder.
        max_segment_cache_bytes: of that folder.
        idle_seconds: a namespace without a session for this long is followed no longer.
        connect_seconds: time that :func:`~suffixsvc_follower.connect` waits for the service.
        max_unsent_tokens: of closed sessions whose close did not wait and that the service does not have yet;
            of more, the oldest are lost, which is logged.
    """

    client: ClientConfig = field(default_factory=ClientConfig)
    max_hot_bytes: int | None = None
    segment_cache: Path | None = None
    max_segment_cache_bytes: int = 64 << 30
    idle_seconds: float = 600.0
    connect_seconds: float = 1.0
    max_unsent_tokens: int = 16 << 20

    def __post_init__(self) -> None:
        if not isinstance(self.client, ClientConfig):
            raise InvalidConfigError("client must be a ClientConfig", got=type(self.client).__name__)
        if self.segment_cache is not None and not isinstance(self.segment_cache, Path):
            raise InvalidConfigError("segment_cache must be a Path or None", got=repr(self.segment_cache))
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in ("client", "segment_cache") or (each.name == "max_hot_bytes" and value is None):
                continue
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or value <= 0:
                raise InvalidConfigError(f"{each.name} must be a positive number", got=repr(value))

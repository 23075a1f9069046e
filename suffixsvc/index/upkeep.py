"""What the engine keeps about one namespace besides its texts.

It belongs to the namespace's index and goes with it. Kept by path it would outlive a namespace that was
deleted or never written to, and be taken for the state of the next namespace of that path.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from suffixsvc.errors import StoreError
from suffixsvc.policies import UNLIMITED, Policy
from suffixsvc.types import SegmentRecord

__all__ = ["Quota", "Upkeep"]


@dataclass(slots=True, eq=False)
class Quota:
    """What a namespace may hold, and what it counts for in the limit of the whole cache. What changes does so
    under the lock of the engine's room."""

    policy: Policy = field(default_factory=Policy)
    #: bytes of its outputs, as last seen
    held: int = 0
    #: bytes admitted, not yet in the log
    coming: int = 0
    #: of these, what is never evicted once it is in the log
    coming_to_stay: int = 0
    #: the namespace was deleted: what it still holds, of sessions that go on, counts no more
    dropped: bool = False

    @property
    def limit(self) -> int:
        """Most bytes of its outputs; UNLIMITED where the policy sets none."""
        return UNLIMITED if self.policy.max_bytes is None else self.policy.max_bytes


@dataclass(slots=True, eq=False)
class Upkeep:
    """Where sealing, merging and repairing of a namespace stand. One thread at a time changes it, the one
    that does these."""

    #: after a failure: not before this time (time.monotonic), and how long that pause is in seconds
    not_before: float = 0.0
    pause_seconds: float = 0.0
    #: (name, outputs left) of segments that need no merge
    merged: list[tuple[str, int]] = field(default_factory=list)
    #: damaged segments that the manifest still names, and what is wrong with each
    undropped: list[tuple[SegmentRecord, StoreError]] = field(default_factory=list)

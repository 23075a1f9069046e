"""State of the engine for one namespace: its quota, and its progress in sealing, merging and repair.

The state belongs to the namespace's index and ends with it. A table by path would outlive a namespace that
was deleted or never written to, and would be taken for the state of a later namespace of that path.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from suffixsvc.errors import StoreError
from suffixsvc.policies import UNLIMITED, Policy
from suffixsvc.types import SegmentRecord


@dataclass(slots=True, eq=False)
class Quota:
    """Limit of a namespace, and what it counts towards the limit of the whole cache.

    The mutable fields are guarded by ``CacheUsage.lock`` (suffixsvc.engine.limits.cache_usage).
    """

    #: replaced as a whole when the policies change
    policy: Policy = field(default_factory=Policy)
    #: the whole cache has a limit, or principals have
    cache_limited: bool = False
    principals_limited: bool = False
    #: bytes of its outputs, as last measured
    used: int = 0
    #: predicted bytes that were admitted and are not in the log yet
    reserved: int = 0
    #: of these, bytes that can never be evicted
    reserved_pinned: int = 0
    #: the namespace was deleted; the texts of its live sessions no longer count here
    dropped: bool = False

    @property
    def limit(self) -> int:
        """Maximum bytes of its outputs; UNLIMITED where the policy sets no limit."""
        return UNLIMITED if self.policy.max_bytes is None else self.policy.max_bytes

    @property
    def limited(self) -> bool:
        """Whether a limit applies to the outputs."""
        return (
            self.cache_limited
            or self.principals_limited
            or self.limit < UNLIMITED
            or bool(self.policy.ttl_seconds)
        )

    @property
    def evicts(self) -> bool:
        """Whether outputs can be evicted, or expire by policy."""
        return self.limited and not self.policy.pinned


@dataclass(slots=True, eq=False)
class MaintenanceState:
    """Progress of sealing, merging and repair. Changed by one thread at a time, the one that does these."""

    #: no attempt before this time (time.monotonic), and the current back-off in seconds; set by failures
    not_before: float = 0.0
    pause_seconds: float = 0.0
    #: (name, live outputs) of the segments for which the last plan found nothing to merge
    nothing_to_merge: list[tuple[str, int]] = field(default_factory=list)
    #: damaged segments that are still in the manifest, and the error of each
    undropped: list[tuple[SegmentRecord, StoreError]] = field(default_factory=list)

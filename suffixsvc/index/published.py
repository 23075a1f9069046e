"""Published runs of a namespace: what readers without a full grant draft from (docs/security.md).

    outputs of principals ──runs of k principals──> file ──publish──> Published.index <── restricted sessions
                                                      └──withdraw: terms, a deletion, a new build──┘

The runs are derived from the log. They lie in an index of their own, which has a segment and no hot text, so
that a session that reads it reaches nothing else.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from suffixsvc.core import Index, Learner, new_learner
from suffixsvc.core.segments import Segment
from suffixsvc.policies import PublishTerms
from suffixsvc.types import SegmentRecord

log = structlog.get_logger(__name__)

#: learned tables that are retained without a session that uses them
_RETAINED_LEARNERS: Final = 16


@dataclass(frozen=True, slots=True)
class PublishedSegment:
    """A segment of published runs.

    Attributes:
        record: name and sizes of the file; ``outputs`` is the number of runs, ``tokens`` their tokens.
        path: the file.
        terms: that the runs meet.
        tokenizer: fingerprint of the tokens.
        built_at: seconds since the epoch.
    """

    record: SegmentRecord
    path: Path
    terms: PublishTerms
    tokenizer: str
    built_at: float


class PrincipalLearner:
    """What drafting learned from the sessions of one principal without a full grant.

    The learned tables of a namespace tell with which probability a token follows another one in its texts.
    These sessions therefore neither use nor change them.
    """

    __slots__ = ("__weakref__", "native")

    def __init__(self, weights: bytes | None) -> None:
        self.native: Learner = new_learner(weights)


class Published:
    """The published runs of one namespace. Thread-safe.

    Args:
        max_context: maximum context length in tokens.
        weights: initial weights of drafting.

    Attributes:
        index: what restricted sessions draft from.
    """

    def __init__(self, max_context: int, weights: bytes | None) -> None:
        self.index = Index(max_context)
        self._weights = weights
        self._lock = threading.Lock()
        #: from a clock: those of a later namespace of the same path are others
        self._edition = time.time_ns()
        self._blocks = 0
        self._current: PublishedSegment | None = None
        self._terms: PublishTerms | None = None
        self._last_built = 0.0
        self._retained: OrderedDict[str, PrincipalLearner] = OrderedDict()
        self._learners: weakref.WeakValueDictionary[str, PrincipalLearner] = weakref.WeakValueDictionary()

    @property
    def edition(self) -> int:
        """A number that rises whenever the runs are replaced or withdrawn."""
        return self._edition

    @property
    def current(self) -> PublishedSegment | None:
        """The segment in use; None: nothing is published."""
        return self._current

    def read(self) -> tuple[int, PublishedSegment | None]:
        """The edition and its segment."""
        with self._lock:
            return self._edition, self._current

    @property
    def last_built(self) -> float:
        """Time of the last build, in seconds since the epoch; 0: there was none."""
        return self._last_built

    def begin(self, terms: PublishTerms) -> int:
        """Begin a build; returns the edition to pass to :meth:`publish`. Before the log is read."""
        with self._lock:
            self._terms = terms
            return self._edition

    def publish(self, edition: int, found: PublishedSegment | None, segment: Segment | None) -> bool:
        """Use what a build has found, unless runs were withdrawn since it began; returns whether it is used.

        Args:
            edition: result of :meth:`begin`.
            found, segment: None: there is no run to publish.
        """
        with self._lock:
            if edition != self._edition or self._blocks:
                return False
            self._edition += 1
            self._last_built = time.time() if found is None else found.built_at
            old, self._current = self._current, found
            self.index.set_segments([] if segment is None else [segment])
        _remove(old)
        return True

    def block(self) -> None:
        """Withdraw, and publish nothing until :meth:`unblock`: text is about to be deleted."""
        with self._lock:
            self._blocks += 1
        self.withdraw()

    def unblock(self) -> None:
        """The text is deleted. What a build has read before that is not published."""
        with self._lock:
            self._blocks -= 1
            self._edition += 1

    def withdraw(self) -> None:
        """Take the runs out of use, and remove their file. A build in progress publishes nothing.

        Steps that begin after this call do not draft from them.
        """
        with self._lock:
            self._edition += 1
            old, self._current = self._current, None
            self.index.set_segments([])
        _remove(old)

    def withdraw_unless(self, terms: PublishTerms | None) -> None:
        """Withdraw runs that were built, or are being built, on other terms."""
        with self._lock:
            changed = self._terms is not None and (terms is None or not terms.same_runs(self._terms))
        if changed:
            self.withdraw()

    def learner(self, principal: str) -> PrincipalLearner:
        """What drafting learned from sessions of a principal."""
        with self._lock:
            found = self._learners.get(principal)
            if found is None:
                found = self._learners[principal] = PrincipalLearner(self._weights)
            self._retained[principal] = found
            self._retained.move_to_end(principal)
            while len(self._retained) > _RETAINED_LEARNERS:
                self._retained.popitem(last=False)
            return found

    def unlearn(self) -> None:
        """Replace what drafting has learned by the initial weights, also for live sessions."""
        with self._lock:
            self._retained.clear()
            learners = list(self._learners.values())
        for each in learners:
            each.native.load(new_learner(self._weights).save())


def _remove(old: PublishedSegment | None) -> None:
    """Delete the file of a segment that is not used any more; steps in progress have it mapped."""
    if old is None:
        return
    try:
        old.path.unlink(missing_ok=True)
    except OSError as error:  # the next open removes it
        log.warning("a file of published runs could not be removed", file=str(old.path), error=str(error))

"""Probing: principals that are offered drafts of shared text and do not append what their model wrote.

A prober opens sessions with guessed contexts to be told how they continue. A meter of each principal
(csrc/draft/session/probe_meter.h) counts drafted tokens that nothing was appended after, and compares how
many of the others were expected to match, by their calibrated probabilities, with how many did. While the
excess is above the limit of the principal, its steps that ask for drafts are refused.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields

import structlog

from suffixsvc.access.caller import Caller
from suffixsvc.access.principals import OPERATOR
from suffixsvc.access.rate_limits import MAX_UNMATCHED_TOKENS
from suffixsvc.core import ProbeMeter

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ProbeStats:
    """How drafts of one principal are answered, since the service started. Tokens are those of shared text.

    Attributes:
        principal: its name.
        drafts: drafts with such tokens.
        drafted_tokens: the tokens; those of repeated drafts at one place once.
        expected_matches: how many of those that were answered their probabilities predicted to match.
        matched_tokens: how many did.
        unanswered_tokens: drafted tokens that nothing was appended after.
        open_tokens: drafted tokens that may be answered yet, at present.
        refused_steps: steps that were refused or got no draft because of the limit.
        excess: tokens that are charged to it at present; above the limit steps are refused.
    """

    principal: str
    drafts: int
    drafted_tokens: int
    expected_matches: float
    matched_tokens: int
    unanswered_tokens: int
    open_tokens: int
    refused_steps: int
    excess: float


class Probes:
    """The meters of the principals of a service. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._meters: dict[str, tuple[Caller, ProbeMeter]] = {}
        #: steps that were refused at the last report, by principal
        self._reported: dict[str, int] = {}

    def meter_of(self, caller: Caller) -> ProbeMeter | None:
        """The meter of a caller's principal, with its present limit; None for the operator."""
        if caller.principal == OPERATOR:
            return None
        with self._lock:
            _, meter = self._meters.setdefault(caller.principal, (caller, ProbeMeter()))
        meter.set_limit(_limit(caller))
        return meter

    def apply_limits(self) -> None:
        """Take over limits that have changed."""
        with self._lock:
            meters = list(self._meters.values())
        for caller, meter in meters:
            meter.set_limit(_limit(caller))

    def stats(self) -> list[ProbeStats]:
        """The counts of all principals that had sessions, by name."""
        with self._lock:
            meters = sorted((name, meter) for name, (_, meter) in self._meters.items())
        return [_stats(name, meter) for name, meter in meters]

    def report(self) -> None:
        """Log principals of which steps were refused since the last call, which is a minute ago."""
        for each in self.stats():
            refused = each.refused_steps - self._reported.get(each.principal, 0)
            self._reported[each.principal] = each.refused_steps
            if refused:
                log.warning(
                    "a principal may be probing: its sessions do not append what was drafted",
                    principal=each.principal,
                    drafted_tokens=each.drafted_tokens,
                    unanswered_tokens=each.unanswered_tokens,
                    expected_matches=round(each.expected_matches, 1),
                    matched_tokens=each.matched_tokens,
                    refused_steps=refused,
                )


def _stats(principal: str, meter: ProbeMeter) -> ProbeStats:
    counts = meter.counts()
    return ProbeStats(
        principal,
        *(getattr(counts, each.name) for each in fields(ProbeStats) if each.name != "principal"),
    )


def _limit(caller: Caller) -> float:
    own = caller.limits.max_unmatched_tokens
    return MAX_UNMATCHED_TOKENS if own is None else own

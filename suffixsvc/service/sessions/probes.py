"""Probing: principals that are offered drafts of shared text and do not append what the drafts predicted.

A prober opens sessions with guessed contexts to be told how they continue. What it appends afterwards, if it
appends anything, is seldom what was drafted. A meter of each principal (csrc/draft/session/probe_meter.h)
compares how many drafts were expected to match, by their calibrated probabilities, with how many did. While
the excess is above the limit of the principal, its steps that ask for drafts are refused.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import structlog

from suffixsvc.access.caller import Caller
from suffixsvc.access.principals import OPERATOR
from suffixsvc.access.rate_limits import MAX_UNMATCHED_DRAFTS
from suffixsvc.core import ProbeMeter

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ProbeStats:
    """How drafts of one principal are matched, since the service started.

    Attributes:
        principal: its name.
        drafts: drafts that began with a token of shared text.
        expected_matches: how many of them their probabilities predicted to match.
        matched_drafts: how many did: the first token that was appended next is one that they began with.
        refused_steps: steps that were refused because of the limit.
        excess: drafts that are charged to it at present; above the limit steps are refused.
    """

    principal: str
    drafts: int
    expected_matches: float
    matched_drafts: int
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
        return [
            ProbeStats(name, meter.drafts, meter.expected, meter.matched, meter.refused, meter.excess)
            for name, meter in meters
        ]

    def report(self) -> None:
        """Log principals of which steps were refused since the last call, which is a minute ago."""
        for each in self.stats():
            refused = each.refused_steps - self._reported.get(each.principal, 0)
            self._reported[each.principal] = each.refused_steps
            if refused:
                log.warning(
                    "a principal may be probing: what its sessions append is seldom what was drafted",
                    principal=each.principal,
                    drafts=each.drafts,
                    expected_matches=round(each.expected_matches, 1),
                    matched_drafts=each.matched_drafts,
                    refused_steps=refused,
                )


def _limit(caller: Caller) -> float:
    own = caller.limits.max_unmatched_drafts
    return MAX_UNMATCHED_DRAFTS if own is None else own

"""Turns of ``suffixsvc generate``: a prompt and its text, as results for people and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from suffixsvc.types import DraftSource
from suffixsvc_driver.cost.live_curve import LiveCurve
from suffixsvc_driver.decode.loop import Result, StepRecord
from suffixsvc_driver.drafts.events import FinishReason
from suffixsvc_driver.speculation.accounting import HitCounts, Stats
from suffixsvc_driver.targets import Prefilled

FORMAT: Final = "suffixsvc-generate/1"


@dataclass(frozen=True, slots=True)
class Turn:
    """The text after a prompt.

    Attributes:
        result: the generation; its prefill reused everything, as the prompt was read before.
        prefill, prefill_seconds: reading the prompt.
        text: without the end token or the stop text.
        stopped_at: the stop text that was written; "" for none.
        interrupted: a signal ended it.
    """

    result: Result
    prefill: Prefilled
    prefill_seconds: float
    text: str
    stopped_at: str
    interrupted: bool

    @property
    def why_it_ended(self) -> str:
        """Reason of the end, as text."""
        if self.interrupted:
            return "interrupted"
        match self.result.finish:
            case FinishReason.LENGTH:
                return "the maximum number of tokens (--max-tokens)"
            case FinishReason.CONTEXT:
                return "the context is full (--context)"
            case _ if self.stopped_at:
                return f"the stop text {self.stopped_at!r}"
        return "the model's end token"

    def to_dict(self) -> dict[str, Any]:
        """JSON-able data."""
        result = self.result
        return {
            "prompt_token_ids": list(result.prompt_ids),
            "token_ids": list(result.token_ids),
            "sources": [DraftSource(source).name.lower() for source in result.sources],
            "text": self.text,
            "finish": "interrupted" if self.interrupted else str(result.finish),
            "stopped_at": self.stopped_at or None,
            "prefill": {
                "reused": self.prefill.reused,
                "computed": self.prefill.computed,
                "seconds": self.prefill_seconds,
            },
            "decode_seconds": result.decode_seconds,
            "tokens_per_second": result.tokens_per_second,
            "expected_speedup": expected_speedup(result.stats),
            "stats": result.stats.to_json(),
            "steps": [_step_to_dict(step) for step in result.steps],
        }


def _step_to_dict(step: StepRecord) -> dict[str, Any]:
    decision = step.decision
    return {
        "position": step.start + 1,
        "considered": [considered._asdict() for considered in decision.considered],
        "rate": decision.rate,
        "layer": decision.layer or None,
        "continued_by": decision.continued_by or None,
        "continued_at": decision.continued_at,
        "drafted": list(decision.token_ids[: decision.drafted]),
        "padding": decision.padding,
        "width": len(step.token_ids),
        "replayed": step.replayed,
        "accepted": step.agreed,
        "emitted": list(step.emitted),
        "ask_seconds": step.query_seconds,
        "target_seconds": step.target_seconds,
    }


def expected_speedup(stats: Stats) -> float:
    """Steps of plain decoding over the cost of the steps by the curve."""
    return stats.tokens / stats.cost if stats.cost else 1.0


class Totals:
    """Sums over all turns so far.

    Args:
        live: cost curve of the target.
        measured: the curve is not an estimate.

    Attributes:
        stats: the counts.
        turns, prefilled, reused: number of turns; prompt tokens that were computed, and that were reused.
        origins: tokens written, by DraftSource.
    """

    def __init__(self, live: LiveCurve, *, measured: bool) -> None:
        self._live = live
        self.measured = measured
        self.stats = Stats()
        self.turns = self.prefilled = self.reused = 0
        self.prefill_seconds = self.decode_seconds = 0.0
        self.origins: dict[int, int] = {}
        self.why_it_ended = ""

    def add(self, turn: Turn) -> None:
        """Add a turn."""
        self.stats.add(turn.result.stats)
        self.turns += 1
        self.prefilled += turn.prefill.computed
        self.reused += turn.prefill.reused
        self.prefill_seconds += turn.prefill_seconds
        self.decode_seconds += turn.result.decode_seconds
        for source in turn.result.sources:
            self.origins[source] = self.origins.get(source, 0) + 1
        self.why_it_ended = turn.why_it_ended

    @property
    def plain_step_seconds(self) -> float:
        """Duration of a plain step; 0 if unknown."""
        return self._live.seconds_per_step

    @property
    def measured_speedup(self) -> float | None:
        """Speedup over a plain step per token; None if its duration is unknown."""
        if not self.plain_step_seconds or not self.decode_seconds:
            return None
        return self.stats.tokens * self.plain_step_seconds / self.decode_seconds

    def of_kinds(self) -> dict[str, HitCounts]:
        """Counts by kind of evidence, without the target's own tokens."""
        return {kind: counts for kind, counts in self.stats.evidence.items() if kind != "target"}

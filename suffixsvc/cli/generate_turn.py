"""A turn of ``suffixsvc generate``: a prompt and what was written behind it, for people and machines."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from suffixsvc_driver.accounting import HitCounts, Stats
from suffixsvc_driver.events import FinishReason
from suffixsvc_driver.live_curve import LiveCurve
from suffixsvc_driver.loop import Result, StepRecord
from suffixsvc_driver.targets import Prefilled

from suffixsvc.types import DraftSource

__all__ = ["FORMAT", "Totals", "Turn", "expected_speedup"]

FORMAT: Final = "suffixsvc-generate/1"


@dataclass(frozen=True, slots=True)
class Turn:
    """What was written behind a prompt.

    Attributes:
        result: of the generation; its prefill found all that was read before.
        prefill, prefill_seconds: reading the prompt.
        text: what was written, without the token or the text that ended it.
        stopped_at: the stop text that was written; "" for none.
        interrupted: somebody ended it.
    """

    result: Result
    prefill: Prefilled
    prefill_seconds: float
    text: str
    stopped_at: str
    interrupted: bool

    @property
    def why_it_ended(self) -> str:
        """In words."""
        if self.interrupted:
            return "it was interrupted"
        match self.result.finish:
            case FinishReason.LENGTH:
                return "as many tokens as were asked for (--max-tokens)"
            case FinishReason.CONTEXT:
                return "the context is full (--context)"
            case _ if self.stopped_at:
                return f"it wrote {self.stopped_at!r}"
        return "the model ended it"

    def as_plain(self) -> dict[str, Any]:
        """For machines."""
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
            "steps": [_step_as_plain(step) for step in result.steps],
        }


def _step_as_plain(step: StepRecord) -> dict[str, Any]:
    decision = step.decision
    return {
        "position": step.start + 1,
        "considered": [asdict(considered) for considered in decision.considered],
        "rate": decision.rate,
        "layer": decision.layer or None,
        "continued_by": decision.continued_by or None,
        "continued_at": decision.continued_at,
        "drafted": list(decision.token_ids[: len(decision.token_ids) - decision.padding]),
        "padding": decision.padding,
        "width": len(step.token_ids),
        "replayed": step.replayed,
        "accepted": min(step.accepted, len(decision.token_ids) - decision.padding),
        "emitted": list(step.emitted),
        "ask_seconds": step.ask_seconds,
        "target_seconds": step.target_seconds,
    }


def expected_speedup(stats: Stats) -> float:
    """Plain steps that plain decoding takes, over those that the steps should have cost by the curve."""
    return stats.tokens / stats.cost if stats.cost else 1.0


class Totals:
    """Of all turns so far.

    Args:
        live: what steps cost.
        measured: whether somebody measured that.

    Attributes:
        stats: the counts.
        turns, prefilled, reused: how many turns; tokens of prompts that were read, and that were there.
        origins: tokens written by DraftSource.
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
        """Another turn."""
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
        """What a plain step takes; 0 where nobody knows."""
        return self._live.seconds_per_step

    @property
    def measured_speedup(self) -> float | None:
        """Against a plain step for each token; None where nobody knows what one takes."""
        if not self.plain_step_seconds or not self.decode_seconds:
            return None
        return self.stats.tokens * self.plain_step_seconds / self.decode_seconds

    def of_kinds(self) -> dict[str, HitCounts]:
        """By kind of evidence, the target's own tokens left out."""
        return {kind: counts for kind, counts in self.stats.evidence.items() if kind != "target"}

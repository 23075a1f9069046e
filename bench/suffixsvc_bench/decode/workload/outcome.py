"""Outcome of one job answered by one variant."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Outcome"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Tokens, time and draft counts of an answer.

    Attributes:
        tokens: tokens written.
        seconds: decoding time, all costs of drafting included.
        steps: steps of the target.
        drafted, accepted: tokens sent to verification, and those that the target accepted.
        by_layer: accepted tokens of each layer.
        own_ms: for each step, the time of layer queries, milliseconds.
        deciding_seconds: time outside target and layers, over all steps.
        token_ids: tokens written, where known.
    """

    tokens: int
    seconds: float
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    by_layer: dict[str, int] = field(default_factory=dict)
    own_ms: tuple[float, ...] = ()
    deciding_seconds: float = 0.0
    token_ids: tuple[int, ...] = ()

    @property
    def speed(self) -> float:
        """Tokens per second; 0 without time."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

"""What came of one job answered in one way."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Outcome"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One job answered in one way.

    Attributes:
        tokens, seconds: written, and what decoding them took, everything that drafting costs included.
        steps: of the target.
        drafted, accepted: tokens sent to verification, and those the target agreed with.
        by_layer: accepted tokens of each layer.
        own_ms: for each step, what asking the layers took, milliseconds.
        deciding_seconds: in neither the target nor a layer, over all steps.
        token_ids: what was written, where it is known.
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
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

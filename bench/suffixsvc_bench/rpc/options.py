"""Options of ``suffixsvc bench rpc``."""

from __future__ import annotations

from dataclasses import dataclass

from suffixsvc.config import Limits
from suffixsvc.errors import InvalidConfigError
from suffixsvc.verb_options import option


@dataclass(frozen=True, slots=True)
class RpcOptions:
    """What is measured.

    Raises:
        InvalidConfigError: an option is out of range.
    """

    transports: tuple[str, ...] = option(
        ("unix", "tcp"), "--transport", help="Transport: unix or tcp. Repeatable. Default: both."
    )
    kinds: tuple[str, ...] = option(
        ("stream", "unary"),
        "--kind",
        help="Kind of call: stream or unary. Repeatable. Default: both.",
    )
    #: a unary call has one
    batches: tuple[int, ...] = option(
        (1, 8, 64),
        "--batch",
        help="Sessions in one message of a stream. Repeatable. Default: 1, 8 and 64.",
    )
    modes: tuple[str, ...] = option(
        ("hot", "cold"),
        "--mode",
        help="Mode: hot (back-to-back calls) or cold (a CPU-bound pause before each). Repeatable. "
        "Default: both.",
    )
    calls: int = option(800, min=1, help="Timed calls of each configuration.")
    #: at most one a call: step, echo, engine, step, echo, engine ...
    rounds: int = option(
        8, min=1, help="Alternating rounds (step, echo, engine) that the calls are divided into."
    )
    pause_ms: float = option(4.0, min=0, help="CPU-bound pause before a cold call, in milliseconds.")
    followers: bool = option(True, "--followers/--no-followers", help="Measure followers.")
    identities: bool = option(
        True, "--identities/--no-identities", help="Measure steps over TLS with a token."
    )
    neighbours: bool = option(
        True, "--neighbours/--no-neighbours", help="Measure steps beside a noisy neighbour."
    )
    sealed_tokens: int = option(
        0, min=0, help="Also open a follower on a namespace with as many sealed tokens; 0: do not."
    )
    seed: int = option(0, min=0, help="Seed of the texts.")
    max_draft_tokens: int = 16
    #: outputs of 500 tokens in the service at the start
    outputs: int = 200
    #: hot tokens of the namespace that followers are opened on
    hot_tokens: int = 1_000_000
    #: duration of the measurements of followers that count work in a time
    seconds: float = 10.0

    def __post_init__(self) -> None:
        for name, known in (
            ("transports", {"unix", "tcp"}),
            ("kinds", {"stream", "unary"}),
            ("modes", {"hot", "cold"}),
        ):
            chosen = getattr(self, name)
            if not chosen or not set(chosen) <= known:
                raise InvalidConfigError(f"{name} must be of {sorted(known)}", got=chosen)
        most = Limits().max_sessions
        if not self.batches or min(self.batches) < 1 or max(self.batches) > most:
            raise InvalidConfigError(f"batches must be numbers of sessions, 1 .. {most}", got=self.batches)
        if min(self.rounds, self.calls) < 1 or self.pause_ms < 0:
            raise InvalidConfigError("rounds and calls must be >= 1, pause_ms >= 0", got=repr(self)[:200])

    def configurations(self) -> list[tuple[str, str, int, str]]:
        """(transport, kind, batch, mode) of every configuration."""
        return [
            (transport, kind, batch, mode)
            for transport in self.transports
            for kind in self.kinds
            for batch in ((1,) if kind == "unary" else self.batches)
            for mode in self.modes
        ]

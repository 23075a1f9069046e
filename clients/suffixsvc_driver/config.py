"""Settings of the driver."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any, Final

from suffixsvc.errors import InvalidConfigError
from suffixsvc_driver.model_class import ModelClass

__all__ = ["Controller", "DriverConfig", "LayerKind", "LayerSpec", "Policy"]


_COUNTS: Final = (
    "max_draft_tokens",
    "min_match_tokens",
    "k_start",
    "k_min",
    "k_max",
    "k_step",
    "k_window_steps",
    "probe_every_steps",
)


class Policy(enum.StrEnum):
    """How a draft is chosen."""

    #: the prefix that gains most tokens for its cost; nothing when nothing pays
    EXPECTED_GAIN = "expected-gain"
    #: the first layer whose draft has at least three tokens, K tokens of it
    FIRST_MATCH = "first-match"


class Controller(enum.StrEnum):
    """first-match: what says how many tokens to draft."""

    #: always ``k_start``
    FIXED = "fixed-k"
    #: by acceptance over a window of steps
    ADAPTIVE = "adaptive-k"
    #: likewise, within a range that belongs to the kind of text
    CONTENT = "content-k"
    #: likewise, within the range that belongs to the class of the model
    CLASS = "class-k"


class LayerKind(enum.StrEnum):
    """What a drafting layer is, which decides how its asking is priced."""

    #: the session's own text, in process: next to nothing
    PROMPT_LOOKUP = "prompt-lookup"
    #: the suffix index, embedded or over a client: a little time per question
    SUFFIX = "suffix"
    #: a small model: time per drafted token
    DRAFT_MODEL = "draft-model"


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer as the state machine sees it.

    Attributes:
        name: unique among the layers of a driver.
        kind: see :class:`LayerKind`.
        seconds_per_ask: a first guess of what a question costs; measured afterwards.
        seconds_per_token: the same for each drafted token (draft models).
        max_draft_tokens: never ask for more.
        continues: it can go on behind another layer's draft (``layers.ContinuingLayer``).
        seconds_per_read_token: of each token it has not seen (draft models); 0 = nobody knows.
        checks: of a layer that continues: it looks at so many of the tokens suggested to it, and those that
            it agrees with come in one pass.

    Raises:
        InvalidConfigError: a name that is empty, no such kind, a time that is negative or not finite, or
            ``max_draft_tokens`` below 1, ``checks`` below 0.
    """

    name: str
    kind: LayerKind
    seconds_per_ask: float = 0.0
    seconds_per_token: float = 0.0
    max_draft_tokens: int = 64
    continues: bool = False
    seconds_per_read_token: float = 0.0
    checks: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidConfigError("a layer has no name", expected="a string", got=repr(self.name))
        object.__setattr__(self, "kind", _member(LayerKind, "kind of layer", self.kind))
        for name in ("seconds_per_ask", "seconds_per_token", "seconds_per_read_token"):
            _require_number(f"layer {self.name}: {name}", getattr(self, name))
        _require_count(f"layer {self.name}: max_draft_tokens", self.max_draft_tokens)
        _require_count(f"layer {self.name}: checks", self.checks, 0)


@dataclass(frozen=True, slots=True)
class DriverConfig:
    """How the driver decides.

    Attributes:
        policy: see :class:`Policy`; a string of the same value is accepted.
        max_draft_tokens: the widest draft ever sent to the target.
        min_match_tokens: first-match: a draft counts from this many tokens.
        first_match_cost: first-match: the price of a drafted token, in plain steps, by which layers cut
            drafts they do not believe in; it takes the place of the curve.
        controller: first-match: see :class:`Controller`; a string of the same value is accepted.
        k_start, k_min, k_max, k_step: first-match: the number of tokens to draft, and how it changes.
        model_class: what the controller "class-k" goes by.
        k_window_steps: first-match: acceptance is watched over this many steps.
        k_raise_above, k_lower_below: acceptance rates at which K changes.
        rate_decay: how fast the running rate (tokens per plain step's cost) forgets, per step.
        probe_every_steps: a layer that is not worth its price is asked again after so many steps; a cheap one
            sooner (:mod:`suffixsvc_driver.asking`).

    Raises:
        InvalidConfigError: no such policy, a number of tokens or steps below 1, K's bounds out of order, an
            acceptance rate outside 0 .. 1 or not below the one that raises K, a price that is negative or
            not finite, ``rate_decay`` outside 0 .. 1.
    """

    policy: Policy = Policy.EXPECTED_GAIN
    max_draft_tokens: int = 64
    min_match_tokens: int = 3
    first_match_cost: float = 0.2
    controller: Controller = Controller.ADAPTIVE
    k_start: int = 12
    k_min: int = 4
    k_max: int = 24
    k_step: int = 4
    k_window_steps: int = 128
    k_raise_above: float = 0.80
    k_lower_below: float = 0.60
    rate_decay: float = 0.99
    probe_every_steps: int = 64
    model_class: ModelClass | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", _member(Policy, "policy", self.policy))
        object.__setattr__(self, "controller", _member(Controller, "controller", self.controller))
        if self.model_class is not None:
            object.__setattr__(self, "model_class", _member(ModelClass, "class of models", self.model_class))
        elif self.controller is Controller.CLASS:
            raise InvalidConfigError(
                "class-k goes by the class of the model", expected="model_class", got=self.model_class
            )
        for name in _COUNTS:
            _require_count(name, getattr(self, name))
        if not self.k_min <= self.k_start <= self.k_max:
            raise InvalidConfigError(
                "the range of K makes no sense",
                expected="k_min <= k_start <= k_max",
                got=(self.k_min, self.k_start, self.k_max),
            )
        object.__setattr__(self, "first_match_cost", _as_float(self.first_match_cost))
        for name in ("first_match_cost", "k_raise_above", "k_lower_below", "rate_decay"):
            _require_number(name, getattr(self, name))
        if not self.k_lower_below < self.k_raise_above <= 1.0:
            raise InvalidConfigError(
                "the acceptance rates at which K changes make no sense",
                expected="0 <= k_lower_below < k_raise_above <= 1",
                got=(self.k_lower_below, self.k_raise_above),
            )
        if not 0.0 < self.rate_decay < 1.0:
            raise InvalidConfigError("rate_decay makes no sense", expected="0 < x < 1", got=self.rate_decay)


def _member(kinds: type[enum.StrEnum], what: str, value: Any) -> enum.StrEnum:
    try:
        return kinds(value)
    except ValueError as err:
        raise InvalidConfigError(f"no such {what}", expected=" or ".join(kinds), got=repr(value)) from err


def _require_count(name: str, value: Any, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidConfigError(f"{name} makes no sense", expected=f"an int >= {least}", got=repr(value))


def _as_float(value: Any) -> Any:
    """An int as a float; anything else as it is, to be refused."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _require_number(name: str, value: Any) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:
        raise InvalidConfigError(f"{name} makes no sense", expected="a finite number >= 0", got=repr(value))

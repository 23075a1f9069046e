"""Settings of the driver and the specification of its layers."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any, Final

from suffixsvc.errors import InvalidConfigError
from suffixsvc_driver.settings.model_class import ModelClass

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
    """Rule that selects the draft of a step."""

    #: the prefix with the largest expected gain; no draft if none has a gain
    EXPECTED_GAIN = "expected-gain"
    #: K tokens of the first layer whose draft has at least ``min_match_tokens`` tokens
    FIRST_MATCH = "first-match"


class Controller(enum.StrEnum):
    """Rule of the first-match policy for K, the number of tokens to draft."""

    #: always ``k_start``
    FIXED = "fixed-k"
    #: by the acceptance rate over a window of steps
    ADAPTIVE = "adaptive-k"
    #: adaptive within the range of the kind of text
    CONTENT = "content-k"
    #: adaptive within the range of the model's class
    CLASS = "class-k"


class LayerKind(enum.StrEnum):
    """Kind of a drafting layer, which determines the cost model of its queries."""

    #: the session's own text, in process: negligible cost
    PROMPT_LOOKUP = "prompt-lookup"
    #: the suffix index, embedded or over a client: a small cost per query
    SUFFIX = "suffix"
    #: a small model: a cost per drafted token
    DRAFT_MODEL = "draft-model"


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """Specification of a layer for the state machine.

    Attributes:
        name: unique among the layers of a driver.
        kind: see :class:`LayerKind`.
        seconds_per_query: initial estimate of the seconds of a query; measured afterwards.
        seconds_per_token: the same for each drafted token (draft models).
        max_draft_tokens: largest number of tokens of a query.
        continues: the layer can continue another layer's draft (``layers.ContinuingLayer``).
        seconds_per_read_token: of reading a token (draft models); 0 if unknown.
        checks: number of suggested tokens that a continuing layer verifies in one pass.

    Raises:
        InvalidConfigError: ``name`` is empty, ``kind`` is unknown, a time is negative or not finite,
            ``max_draft_tokens`` is below 1, or ``checks`` is below 0.
    """

    name: str
    kind: LayerKind
    seconds_per_query: float = 0.0
    seconds_per_token: float = 0.0
    max_draft_tokens: int = 64
    continues: bool = False
    seconds_per_read_token: float = 0.0
    checks: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidConfigError("name of a layer must be a string, not empty", got=repr(self.name))
        object.__setattr__(self, "kind", _member(LayerKind, "kind of a layer", self.kind))
        for name in ("seconds_per_query", "seconds_per_token", "seconds_per_read_token"):
            _require_number(f"layer {self.name}: {name}", getattr(self, name))
        _require_count(f"layer {self.name}: max_draft_tokens", self.max_draft_tokens)
        _require_count(f"layer {self.name}: checks", self.checks, 0)


@dataclass(frozen=True, slots=True)
class DriverConfig:
    """Settings of a driver.

    Those from ``min_match_tokens`` to ``k_lower_below`` are of the first-match policy.

    Attributes:
        policy: see :class:`Policy`; a string of the same value is accepted.
        max_draft_tokens: largest draft that is sent to the target.
        min_match_tokens: smallest draft that counts as a match.
        first_match_cost: cost of a drafted token, in plain steps, by which layers cut their drafts in place
            of the cost curve.
        controller: see :class:`Controller`; a string of the same value is accepted.
        k_start: initial K, the number of tokens to draft.
        k_min: lower bound of K.
        k_max: upper bound of K.
        k_step: amount by which K changes.
        k_window_steps: steps over which the acceptance rate is computed.
        k_raise_above: acceptance rate above which K rises.
        k_lower_below: acceptance rate below which K falls.
        rate_decay: factor of the weight of earlier steps in the running rate, per step.
        probe_every_steps: steps after which a layer whose expected gain does not cover its cost is queried
            again; a cheap one earlier (:mod:`suffixsvc_driver.policy.layer_value`).
        model_class: required by the controller "class-k".

    Raises:
        InvalidConfigError: a value is of the wrong type or out of range.
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
            object.__setattr__(self, "model_class", _member(ModelClass, "model_class", self.model_class))
        elif self.controller is Controller.CLASS:
            raise InvalidConfigError("class-k requires model_class, the class of the model", got=None)
        for name in _COUNTS:
            _require_count(name, getattr(self, name))
        if not self.k_min <= self.k_start <= self.k_max:
            raise InvalidConfigError(
                "the range of K must be k_min <= k_start <= k_max", got=(self.k_min, self.k_start, self.k_max)
            )
        object.__setattr__(self, "first_match_cost", _as_float(self.first_match_cost))
        for name in ("first_match_cost", "k_raise_above", "k_lower_below", "rate_decay"):
            _require_number(name, getattr(self, name))
        if not self.k_lower_below < self.k_raise_above <= 1.0:
            raise InvalidConfigError(
                "acceptance rates of K must be 0 <= k_lower_below < k_raise_above <= 1",
                got=(self.k_lower_below, self.k_raise_above),
            )
        if not 0.0 < self.rate_decay < 1.0:
            raise InvalidConfigError("rate_decay must be between 0 and 1", got=self.rate_decay)


def _member(kinds: type[enum.StrEnum], name: str, value: Any) -> enum.StrEnum:
    try:
        return kinds(value)
    except ValueError as err:
        raise InvalidConfigError(f"{name} must be {' or '.join(kinds)}", got=repr(value)) from err


def _require_count(name: str, value: Any, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidConfigError(f"{name} must be an int >= {least}", got=repr(value))


def _as_float(value: Any) -> Any:
    """Return an int as a float, and any other value unchanged."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _require_number(name: str, value: Any) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:
        raise InvalidConfigError(f"{name} must be a finite number >= 0", got=repr(value))

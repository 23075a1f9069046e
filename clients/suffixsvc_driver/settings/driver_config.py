"""Settings of the driver and the specification of its layers."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from suffixsvc_driver.settings.checks import as_member, check_numbers, require
from suffixsvc_driver.settings.model_class import ModelClass


class Policy(enum.StrEnum):
    """Rule that selects the draft of a step."""

    #: the prefix with the largest expected gain; no draft if none has a gain
    EXPECTED_GAIN = "expected-gain"
    #: at most K tokens of the first layer whose draft has at least ``min_match_tokens`` tokens
    FIRST_MATCH = "first-match"


class Controller(enum.StrEnum):
    """Rule of the first-match policy for K, the largest number of tokens to draft."""

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

    #: the text that the grammar of the output forces, in process: negligible cost; queried in every step
    GRAMMAR = "grammar"
    #: a text that the caller expects as the output, in process: negligible cost
    PREDICTION = "prediction"
    #: the session's own text, in process: negligible cost
    PROMPT_LOOKUP = "prompt-lookup"
    #: the suffix index, embedded or over a client: a small cost per query
    SUFFIX = "suffix"
    #: a small model: a cost per drafted token
    DRAFT_MODEL = "draft-model"

    @property
    def of_request(self) -> bool:
        """Whether the layer is on where a request has what it drafts from, a grammar or a prediction."""
        return self in (LayerKind.GRAMMAR, LayerKind.PREDICTION)


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """Specification of a layer for the state machine.

    Attributes:
        name: unique among the layers of a driver.
        kind: see :class:`LayerKind`.
        seconds_per_query: initial estimate of the seconds of a query; measured afterwards.
        seconds_per_token: the same for each drafted token (draft models).
        max_draft_tokens: largest number of tokens of a query.
        can_continue: the layer can continue another layer's draft.
        seconds_per_read_token: of reading a token (draft models); 0 if unknown.
        max_suggested: number of suggested tokens that a continuing layer verifies in one pass.

    Raises:
        InvalidConfigError: ``name`` is empty, ``kind`` is unknown, a time is negative or not finite,
            ``max_draft_tokens`` is below 1, or ``max_suggested`` is below 0.
    """

    name: str
    kind: LayerKind
    seconds_per_query: float = 0.0
    seconds_per_token: float = 0.0
    max_draft_tokens: int = 64
    can_continue: bool = False
    seconds_per_read_token: float = 0.0
    max_suggested: int = 0

    def __post_init__(self) -> None:
        fits = isinstance(self.name, str) and self.name != ""
        require(fits, "name of a layer must be a string, not empty", repr(self.name))
        object.__setattr__(self, "kind", as_member(LayerKind, "kind of a layer", self.kind))
        check_numbers(self, f"layer {self.name}: ", max_suggested=0)


@dataclass(frozen=True, slots=True)
class DriverConfig:
    """Settings of a driver.

    Those from ``min_match_tokens`` to ``k_lower_below`` are of the first-match policy.

    Attributes:
        policy: see :class:`Policy`; a string of the same value is accepted.
        max_draft_tokens: largest draft that is sent to the target, also where K is larger.
        min_match_tokens: smallest draft that counts as a match, or K if that is smaller.
        first_match_cost: cost of a drafted token, in plain steps, by which layers cut their drafts in place
            of the cost curve.
        controller: see :class:`Controller`; a string of the same value is accepted.
        k_start: initial K, the largest number of tokens to draft.
        k_min, k_max: range of K of adaptive-k. content-k and class-k move K into their own ranges; fixed-k
            keeps it.
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
        object.__setattr__(self, "policy", as_member(Policy, "policy", self.policy))
        object.__setattr__(self, "controller", as_member(Controller, "controller", self.controller))
        if self.model_class is not None:
            object.__setattr__(self, "model_class", as_member(ModelClass, "model_class", self.model_class))
        has_class = self.model_class is not None or self.controller is not Controller.CLASS
        require(has_class, "class-k requires model_class, the class of the model", None)
        check_numbers(self)
        require(
            self.controller is not Controller.ADAPTIVE or self.k_min <= self.k_start <= self.k_max,
            "k_start must be in the range of K: k_min <= k_start <= k_max",
            (self.k_min, self.k_start, self.k_max),
        )
        require(
            self.k_lower_below < self.k_raise_above <= 1.0,
            "acceptance rates of K must be 0 <= k_lower_below < k_raise_above <= 1",
            (self.k_lower_below, self.k_raise_above),
        )
        require(0.0 < self.rate_decay < 1.0, "rate_decay must be between 0 and 1", self.rate_decay)

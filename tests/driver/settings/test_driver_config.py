"""Invalid settings of the driver and of layers."""

from __future__ import annotations

import math

import pytest

from suffixsvc.errors import InvalidConfigError
from suffixsvc_driver.settings.driver_config import DriverConfig, LayerKind, LayerSpec


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"policy": "best"}, "policy"),
        ({"max_draft_tokens": 0}, "max_draft_tokens"),
        ({"max_draft_tokens": "64"}, "max_draft_tokens"),
        ({"min_match_tokens": True}, "min_match_tokens"),
        ({"k_start": 30}, "range of K"),
        ({"k_max": 24.0}, "k_max"),
        ({"k_step": 0}, "k_step"),
        ({"k_window_steps": 0}, "k_window_steps"),
        ({"probe_every_steps": 0}, "probe_every_steps"),
        ({"first_match_cost": -0.1}, "first_match_cost"),
        ({"first_match_cost": math.nan}, "first_match_cost"),
        ({"first_match_cost": math.inf}, "first_match_cost"),
        ({"first_match_cost": None}, "first_match_cost"),
        ({"k_raise_above": 1.1}, "acceptance rates"),
        ({"k_raise_above": math.nan}, "k_raise_above"),
        ({"k_lower_below": -0.1}, "k_lower_below"),
        ({"k_lower_below": 0.8, "k_raise_above": 0.8}, "acceptance rates"),
        ({"rate_decay": 0.0}, "rate_decay"),
        ({"rate_decay": 1.0}, "rate_decay"),
        ({"rate_decay": "slow"}, "rate_decay"),
    ],
)
def test_bad_settings(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        DriverConfig(**wrong)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": ""}, "name"),
        ({"kind": "oracle"}, "kind of a layer"),
        ({"seconds_per_query": -1.0}, "seconds_per_query"),
        ({"seconds_per_token": math.nan}, "seconds_per_token"),
        ({"seconds_per_token": math.inf}, "seconds_per_token"),
        ({"max_draft_tokens": 0}, "max_draft_tokens"),
        ({"seconds_per_read_token": -1.0}, "seconds_per_read_token"),
        ({"max_suggested": -1}, "max_suggested"),
        ({"max_suggested": True}, "max_suggested"),
    ],
)
def test_bad_layers(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        LayerSpec(**{"name": "model", "kind": LayerKind.DRAFT_MODEL, **wrong})  # type: ignore[arg-type]  # so

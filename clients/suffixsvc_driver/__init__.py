"""Speculation driver: drafts tokens from several layers and verifies them on a target model.

The emitted text is that of the target, whatever the layers draft. Subpackages, from the top:

    profile       cost measurement of targets and pairs of models, suggested settings
    decode        ``generate``, ``generate_many``, a scheduler of requests, chat sessions, exactness checks
    speculation   state machine: events in, decisions out; no clock, no transport, no model
    layers        prompt lookup (in process), suffix (any backend session), draft model (a worker)
    policy        expected gain, calibration of probabilities, value of queries, first-match controllers
    retokenizing  translation between the vocabularies of a draft model and the target
    workers       server and client of draft workers
    targets       llama.cpp through llama-cpp-python's low-level API
    sampling      sampling settings, penalties, grammars
    drafts        chains, trees, events
    cost          cost curves, measured and learned
    settings      settings of the driver

Importing this package loads neither llama.cpp nor gRPC nor the native core. ``LlamaTarget``,
``PromptLookupLayer``, ``SuffixLayer`` and ``measured_curve`` are imported when they are first accessed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.live_curve import LiveCurve
from suffixsvc_driver.decode.loop import Result, StepRecord, generate
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.sampling.settings import GREEDY, Sampling
from suffixsvc_driver.settings.driver_config import DriverConfig, LayerKind, LayerSpec, Policy
from suffixsvc_driver.speculation.accounting import Stats
from suffixsvc_driver.speculation.state_machine import GenerationStateMachine

if TYPE_CHECKING:
    from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer
    from suffixsvc_driver.layers.suffix import SuffixLayer
    from suffixsvc_driver.profile.target_cost import measured_curve
    from suffixsvc_driver.targets.single import LlamaTarget

__all__ = [
    "GREEDY",
    "Calibrator",
    "CostCurve",
    "DriverConfig",
    "GenerationStateMachine",
    "LayerKind",
    "LayerSpec",
    "LiveCurve",
    "LlamaTarget",
    "Policy",
    "PromptLookupLayer",
    "Result",
    "Sampling",
    "Stats",
    "StepRecord",
    "SuffixLayer",
    "generate",
    "measured_curve",
]

#: name -> module that it is imported from on first access
_LAZY: Final = {
    "LlamaTarget": "suffixsvc_driver.targets.single",
    "PromptLookupLayer": "suffixsvc_driver.layers.prompt_lookup",
    "SuffixLayer": "suffixsvc_driver.layers.suffix",
    "measured_curve": "suffixsvc_driver.profile.target_cost",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value

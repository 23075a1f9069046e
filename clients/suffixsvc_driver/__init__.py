"""The speculation driver: verifies drafts on a target model, so that its text stays its own.

    state     the state machine: events in, decisions out; no clock, no transport, no model
    policy    what pays: expected gain over a measured cost curve, or first-match; ``tree_policy`` of a tree,
              ``sharing`` of a batch that several generations share
    trust     what each layer's probabilities turned out to be worth
    layers/   prompt lookup (in process), suffix (any backend session), draft model (a worker)
    retokenizing/  text between two vocabularies, for a draft model that has not the target's
    loop      ``generate``: asks the layers, runs the target, keeps the book
    parallel  ``generate_many``: several generations at once, in shared batches
    sampling  how a token is picked from logits; chooser: with the text before it, penalties and a grammar
    targets/  llama.cpp through llama-cpp-python's low-level API
    workers/  the draft worker's server and client
    models/   which model files there are and where they come from

Importing this package loads neither llama.cpp nor gRPC nor the native core; ``targets.llama``,
``workers`` and ``layers`` do.
"""

from suffixsvc_driver.accounting import Stats
from suffixsvc_driver.config import DriverConfig, LayerKind, LayerSpec, Policy
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.loop import Result, StepRecord, generate
from suffixsvc_driver.sampling import GREEDY, Sampling
from suffixsvc_driver.state import Driver
from suffixsvc_driver.trust import Trust

__all__ = [
    "GREEDY",
    "CostCurve",
    "Driver",
    "DriverConfig",
    "LayerKind",
    "LayerSpec",
    "Policy",
    "Result",
    "Sampling",
    "Stats",
    "StepRecord",
    "Trust",
    "generate",
]

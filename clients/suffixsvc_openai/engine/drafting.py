"""Layers of each answer, and the draft model that they share."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field

import structlog

from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc_driver.cost.live_curve import LiveCurve
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.layers.draft_models import DraftModels, DraftProcess
from suffixsvc_driver.layers.grammar import grammar_layers
from suffixsvc_driver.layers.prediction import PredictionLayer
from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer
from suffixsvc_driver.layers.suffix import SuffixLayer
from suffixsvc_driver.layers.worker_layer import WorkerLayer
from suffixsvc_driver.profile.settings_file import DraftModelSettings, LayerSettings
from suffixsvc_driver.targets.parallel import ParallelLlama
from suffixsvc_openai.engine.memory import MemorySession
from suffixsvc_openai.engine.plans import Plan

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DraftingSettings:
    """What drafts.

    Attributes:
        prompt_lookup, suffix, draft_model: settings of the layers.
        draft: a draft model, or addresses of draft workers; None: no draft model.
        process: of the worker that is started for a model.
    """

    prompt_lookup: LayerSettings = field(default_factory=LayerSettings)
    suffix: LayerSettings = field(default_factory=LayerSettings)
    draft_model: DraftModelSettings = field(default_factory=DraftModelSettings)
    draft: str | None = None
    process: DraftProcess = field(default_factory=DraftProcess)


class Drafting(ClosedOnExit):
    """Makes the layers of answers. Thread-safe; close it after the last answer.

    Args:
        settings: what drafts.
        target: the target.
        curve: cost of its steps.

    Attributes:
        models: the draft model; None without one.

    Raises:
        As :class:`~suffixsvc_driver.layers.draft_models.DraftModels`.
    """

    def __init__(self, settings: DraftingSettings, target: ParallelLlama, curve: LiveCurve) -> None:
        self._settings, self._target, self._curve = settings, target, curve
        self.models: DraftModels | None = None
        with ExitStack() as opened:
            if settings.draft is not None and settings.draft_model.enabled:
                models = DraftModels(settings.draft, target.model, settings.process)
                self.models = opened.enter_context(models)
                if models.through_text is not None:
                    why, kept = models.through_text
                    _log.info("the draft model drafts through text", kept_tokens=f"{kept:.1%}", reason=why)
            self._opened = opened.pop_all()

    def layers(self, plan: Plan, session: MemorySession | None) -> list[Layer]:
        """Return the layers of an answer, cheapest first; see :func:`close_layers`."""
        if not plan.caller.speculate:
            return []
        settings = self._settings
        found = grammar_layers(self._target, plan.sampling)
        if plan.prediction:
            found.append(PredictionLayer(plan.prediction))
        if settings.prompt_lookup.enabled:
            found.append(PromptLookupLayer(max_draft_tokens=settings.prompt_lookup.max_draft_tokens))
        if settings.suffix.enabled and session is not None:
            longest, private = settings.suffix.max_draft_tokens, not plan.caller.store
            found.append(SuffixLayer(session, max_draft_tokens=longest, private=private))
        if self.models is not None:
            model = settings.draft_model
            found.append(
                self.models.layer(
                    p_min=model.p_min,
                    curve=self._curve.curve,
                    top_k=model.top_k,
                    max_draft_tokens=model.max_draft_tokens,
                    principal=plan.caller.principal,
                )
            )
        return found

    def close(self) -> None:
        """Stop the draft model. Idempotent."""
        self._opened.close()


def close_layers(layers: Iterable[Layer]) -> None:
    """Close the layers that hold a session on a worker."""
    for layer in layers:
        if isinstance(layer, WorkerLayer):
            layer.close()


def predicted_tokens(layers: Iterable[Layer]) -> int:
    """Return the number of tokens of the prediction that appeared in an answer, which has ended."""
    return sum(layer.found for layer in layers if isinstance(layer, PredictionLayer))

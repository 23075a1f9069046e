"""Setup of ``suffixsvc generate``: model, cost curve, stored outputs, draft model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import suffixsvc_models as models
from suffixsvc.config import validate_namespace
from suffixsvc.errors import InvalidConfigError
from suffixsvc.types import BackendSession
from suffixsvc_cli.base.bars import progress_bar
from suffixsvc_cli.generate.memory import Memory, namespace_of, open_memory
from suffixsvc_cli.generate.options import Options
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.live_curve import GUESSED, MEASURED, STORED, LiveCurve
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer
from suffixsvc_driver.layers.suffix import SuffixLayer
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.profile.settings_file import Settings
from suffixsvc_driver.profile.target_cost import guessed_curve, stored_curve, stored_or_measured_costs
from suffixsvc_driver.sampling.gbnf import check_grammar
from suffixsvc_driver.settings.driver_config import Controller, DriverConfig, Policy
from suffixsvc_driver.settings.model_class import model_class
from suffixsvc_driver.settings.text_kind import ContentType, content_type
from suffixsvc_driver.targets.llama.experts import expert_counts
from suffixsvc_driver.targets.llama.machine import usable_cores
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.single import LlamaTarget
from suffixsvc_models.gguf_header import check_gguf

_CONTEXT: Final = 4096

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class GenerateSetup:
    """Everything that a turn needs.

    Attributes:
        live: cost curve of the target; ``measured``: not an estimate.
        calibrator: calibrator of the layers, for all turns.
        memory: None without the suffix layer.
        draft: the draft model layer; None without one.
        namespace: of the stored outputs.
    """

    target: LlamaTarget
    settings: Settings
    config: DriverConfig
    live: LiveCurve
    measured: bool
    calibrator: Calibrator
    memory: Memory | None
    draft: Layer | None
    namespace: str

    def layers(self, session: BackendSession | None) -> list[Layer]:
        """Layers of a turn, cheapest first.

        Args:
            session: session with exactly the turn's prompt; None without the suffix layer.
        """
        layers: list[Layer] = []
        if self.settings.prompt_lookup.enabled:
            layers.append(PromptLookupLayer(max_draft_tokens=self.settings.prompt_lookup.max_draft_tokens))
        if session is not None:
            limit, trees = self.settings.suffix.max_draft_tokens, self.settings.target.branches > 0
            layers.append(SuffixLayer(session, max_draft_tokens=limit, tree=trees))
        if self.draft is not None:
            layers.append(self.draft)
        return layers

    @property
    def content(self) -> Callable[[Sequence[int]], ContentType] | None:
        """Classifier of text for a controller that uses it; else None."""
        if self.config.policy is not Policy.FIRST_MATCH or self.config.controller is not Controller.CONTENT:
            return None
        return lambda token_ids: content_type(self.target.model.detokenize(token_ids))

    def to_dict(self) -> dict[str, Any]:
        """JSON-able data."""
        model, settings = self.target.model, self.target.settings
        return {
            "model": {
                "path": str(model.path),
                "name": model.header.name,
                "architecture": model.header.architecture,
                "tokenizer": model.vocabulary.fingerprint,
                "context_size": self.target.context_size,
                "threads": settings.threads,
                "device": model.device,
                "experts_used": model.experts_used,
            },
            "policy": str(self.config.policy),
            "namespace": self.namespace if self.memory is not None else None,
            "curve": {**self.live.curve.to_json(), "measured": self.measured},
        }


def set_up(options: Options, notify: Notify, stack: ExitStack) -> GenerateSetup:
    """Load and start everything; cheap checks come first.

    Args:
        notify: called with messages for the user.
        stack: closes everything in reverse order.

    Raises:
        SuffixError: an option is invalid or a resource is missing.
    """
    settings = options.settings()
    if isinstance(settings.sampling.grammar, str):
        check_grammar(settings.sampling.grammar)
    if not settings.suffix.enabled:
        for name in ("data", "service", "preload"):
            if getattr(options, name) is not None:
                raise InvalidConfigError(
                    f"--{name} must not be given without the suffix layer", remedy="Add suffix to --layers."
                )
    path = models.resolve(options.model)
    if options.draft is not None:
        from suffixsvc_driver.layers.draft_models import check_draft

        check_draft(options.draft)
    namespace = options.namespace or namespace_of(path)
    validate_namespace(namespace)
    header = check_gguf(path)
    config = options.driver(settings.driver, model_class(header.weights, expert_counts(header)[0]))
    trained = header.values.get(f"{header.architecture}.context_length")
    context = min(_CONTEXT, trained) if isinstance(trained, int) and trained > 0 else _CONTEXT
    chosen = settings.target.context_settings(threads=usable_cores(), context_size=context)
    offload = settings.target.offload()
    model = stack.enter_context(LlamaModel(path, experts_used=settings.target.experts_used, offload=offload))
    target = stack.enter_context(LlamaTarget(model, chosen))
    curve, doubt = _curve(target, options, notify)
    memory = None
    if settings.suffix.enabled:
        fingerprint = model.vocabulary.fingerprint
        stored = open_memory(options, namespace, fingerprint, curve.seconds_per_step, notify)
        memory = stack.enter_context(stored)
    draft = None
    if options.draft is not None and settings.draft_model.enabled:
        from suffixsvc_cli.generate.draft import draft_model
        from suffixsvc_driver.layers.draft_models import DraftProcess

        process = DraftProcess(chosen.threads, target.context_size, offload=offload)
        opened = draft_model(options.draft, model, settings.draft_model, curve, notify, process)
        draft = stack.enter_context(opened)
    live = LiveCurve(curve, doubt)
    return GenerateSetup(
        target, settings, config, live, doubt != GUESSED, Calibrator(), memory, draft, namespace
    )


def _curve(target: LlamaTarget, options: Options, notify: Notify) -> tuple[CostCurve, float]:
    """What steps cost, and how far that may be off. A kept curve is not checked first: its first steps do."""
    kept = stored_curve(target)
    if kept is not None:
        return kept, STORED
    if options.no_measure:
        return guessed_curve(target), GUESSED
    notify("measuring the cost of steps on this machine; it is stored for later runs")
    with progress_bar("measuring the cost of steps") as bar:
        return stored_or_measured_costs(target, again=True, progress=bar), MEASURED

"""What ``suffixsvc generate`` writes with: the model, what its steps cost, the memory, the draft model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from suffixsvc_driver import models
from suffixsvc_driver.config import Controller, DriverConfig, Policy
from suffixsvc_driver.content import ContentType, content_type
from suffixsvc_driver.cost import guessed_curve, kept_curve, measured_curve
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.gbnf import check_grammar
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer
from suffixsvc_driver.layers.suffix import SuffixLayer
from suffixsvc_driver.live_curve import GUESSED, KEPT, MEASURED, LiveCurve
from suffixsvc_driver.machine import usable_cores
from suffixsvc_driver.model_class import model_class
from suffixsvc_driver.settings_file import Settings
from suffixsvc_driver.targets.experts import expert_counts
from suffixsvc_driver.targets.gguf_check import check_gguf
from suffixsvc_driver.targets.gguf_header import GgufHeader
from suffixsvc_driver.targets.llama import LlamaTarget
from suffixsvc_driver.targets.llama_model import LlamaModel
from suffixsvc_driver.trust import Trust

from suffixsvc.cli.bars import progress_bar
from suffixsvc.cli.generate_memory import Memory, namespace_of, open_memory
from suffixsvc.cli.generate_options import Options
from suffixsvc.config import validate_namespace
from suffixsvc.errors import InvalidConfigError
from suffixsvc.types import BackendSession

__all__ = ["Rig", "set_up"]

_CONTEXT: Final = 4096

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Rig:
    """Everything a turn is written with.

    Attributes:
        live: what the target's steps cost; ``measured``: not a guess.
        trust: what was learned of the layers, for all turns.
        memory: None where the suffix layer is off.
        draft: the layer of the draft model; None without one.
        namespace: of the memory.
    """

    target: LlamaTarget
    settings: Settings
    config: DriverConfig
    live: LiveCurve
    measured: bool
    trust: Trust
    memory: Memory | None
    draft: Layer | None
    namespace: str

    def layers(self, session: BackendSession | None) -> list[Layer]:
        """Of a turn, cheapest first.

        Args:
            session: of the memory; holds exactly the turn's prompt.
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
        """Says what kind of text tokens are, for a controller that goes by it."""
        if self.config.policy is not Policy.FIRST_MATCH or self.config.controller is not Controller.CONTENT:
            return None
        return lambda token_ids: content_type(self.target.model.detokenize(token_ids))

    def as_plain(self) -> dict[str, Any]:
        """For machines."""
        model, settings = self.target.model, self.target.settings
        return {
            "model": {
                "path": str(model.path),
                "name": model.header.name,
                "architecture": model.header.architecture,
                "tokenizer": model.vocabulary.fingerprint,
                "context_size": self.target.context_size,
                "threads": settings.threads,
                "experts_used": model.experts_used,
            },
            "policy": str(self.config.policy),
            "namespace": self.namespace if self.memory is not None else None,
            "curve": {**self.live.curve.to_json(), "measured": self.measured},
        }


def set_up(options: Options, say: Say, stack: ExitStack) -> Rig:
    """Load and start it all; what is cheap to refuse is refused first.

    Args:
        say: told what is worth knowing.
        stack: closes everything again, the last opened first.

    Raises:
        SuffixError: what was asked for cannot be had.
    """
    settings = options.settings()
    if settings.sampling.grammar is not None:
        check_grammar(settings.sampling.grammar)
    if not settings.suffix.enabled:
        for option, value in (
            ("--data", options.data),
            ("--service", options.service),
            ("--preload", options.preload),
        ):
            if value is not None:
                raise InvalidConfigError(
                    f"{option} without the suffix layer, which drafts from it",
                    expected="suffix among the layers",
                    got="a suffix layer that is off",
                )
    path = models.resolve(options.model)
    if options.draft is not None:
        from suffixsvc.cli.generate_draft import check_draft

        check_draft(options.draft)
    namespace = options.namespace or namespace_of(path)
    validate_namespace(namespace)
    header = check_gguf(path)
    config = options.driver(settings.driver, model_class(header.weights, expert_counts(header)[0]))
    target = _target(path, header, settings, stack)
    curve, doubt = _curve(target, options, say)
    vocabulary = target.model.vocabulary
    memory = None
    if settings.suffix.enabled:
        opened = open_memory(options, namespace, vocabulary.fingerprint, curve.seconds_per_step, say)
        memory = stack.enter_context(opened)
    draft = None
    if options.draft is not None and settings.draft_model.enabled:
        from suffixsvc.cli.generate_draft import draft_model

        draft = stack.enter_context(
            draft_model(
                options.draft,
                target.model,
                settings.draft_model,
                curve,
                say,
                threads=target.settings.threads,
                context_size=target.context_size,
            )
        )
    live = LiveCurve(curve, doubt)
    return Rig(target, settings, config, live, doubt != GUESSED, Trust(), memory, draft, namespace)


def _target(path: Path, header: GgufHeader, settings: Settings, stack: ExitStack) -> LlamaTarget:
    trained = header.values.get(f"{header.architecture}.context_length")
    context = min(_CONTEXT, trained) if isinstance(trained, int) and trained > 0 else _CONTEXT
    wanted = settings.target
    chosen = wanted.context_settings(threads=usable_cores(), context_size=context)
    model = stack.enter_context(LlamaModel(path, experts_used=wanted.experts_used))
    return stack.enter_context(LlamaTarget(model, chosen))


def _curve(target: LlamaTarget, options: Options, say: Say) -> tuple[CostCurve, float]:
    """What steps cost, and how far that may be off. A kept curve is not checked first: its first steps do."""
    kept = kept_curve(target)
    if kept is not None:
        return kept, KEPT
    if not options.measure:
        return guessed_curve(target), GUESSED
    say("measuring what a step costs on this machine; it is kept for the next time")
    with progress_bar("measuring what a step costs") as bar:
        return measured_curve(target, again=True, progress=bar), MEASURED

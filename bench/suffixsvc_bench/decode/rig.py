"""What a run stands on: the model with its measured costs, the service on a unix socket, the draft worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from suffixsvc_client import ClientConfig, SuffixClient
from suffixsvc_driver.content import ContentType, content_type
from suffixsvc_driver.cost import live_curve
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.targets.llama import LlamaTarget
from suffixsvc_driver.targets.llama_context import ContextSettings
from suffixsvc_driver.targets.llama_model import LlamaModel
from suffixsvc_driver.workers.client import DraftWorkerClient

from suffixsvc.children import Children
from suffixsvc.types import BackendNamespace

__all__ = ["Rig", "RigOptions"]

#: prompts of some agents are kept: the next one that begins alike is read from there on
SLOTS: Final = 4
#: a step of the service may cost at most a decode step of the target, within these bounds
STEP_TIMEOUT: Final = (0.005, 0.05)
#: how long a draft is waited for where time is only added up
PATIENCE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class RigOptions:
    """What a rig is made of.

    Attributes:
        target, draft: GGUF files; without a draft model there is no third layer.
        experts: of a mixture of experts, see :class:`LlamaModel`.
        again: measure the cost curve even where one is kept.
    """

    target: Path
    draft: Path | None
    threads: int
    context: int
    max_width: int
    experts: int | None = None
    again: bool = False


class Rig:
    """Opened by its constructor, closed by ``stack``.

    Attributes:
        model, target: the target.
        curve: what its steps cost, learned on from every step.
        draft_seconds: what a token of the draft model takes by the worker's own measurement; 0 without one.
    """

    def __init__(
        self,
        options: RigOptions,
        folder: Path,
        stack: ExitStack,
        measuring: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self.options = options
        self.model = stack.enter_context(LlamaModel(options.target, experts_used=options.experts))
        self._stack = stack
        self._settings = ContextSettings(
            context_size=options.context,
            slots=SLOTS,
            threads=options.threads,
            max_width=options.max_width,
        )
        self.target = stack.enter_context(LlamaTarget(self.model, self._settings))
        self._targets = [self.target]
        self.curve = live_curve(self.target, progress=measuring, again=options.again)
        curve = self.curve.expected()
        self.fingerprint = self.model.vocabulary.fingerprint
        self.draft_seconds = 0.0

        self._children = stack.enter_context(Children(folder))
        address = f"unix:{folder / 'service.sock'}"
        self._children.start_service(folder / "data", address)
        low, high = STEP_TIMEOUT
        patience = min(high, max(low, curve.seconds_per_step))
        self._client = stack.enter_context(SuffixClient(address, ClientConfig(step_timeout_s=patience)))
        client = self._worker(folder, stack)
        vocabulary = self.model.vocabulary
        #: make a layer that drafts with the model; None where there is none. The patient one, which gets its
        #: p_min, waits for it.
        self.draft_model: Callable[[], Layer] | None = None
        self.patient_draft_model: Callable[[float], DraftModelLayer] | None = None
        if client is not None:
            self.draft_seconds = client.check_vocabulary(vocabulary).seconds_per_token
            self.draft_model = lambda: DraftModelLayer(client, vocabulary, curve=curve)
            self.patient_draft_model = lambda p_min: DraftModelLayer(
                client, vocabulary, p_min=p_min, timeout_seconds=PATIENCE_SECONDS
            )

    def targets(self, count: int) -> Sequence[LlamaTarget]:
        """So many, of the same model, each with a context of its own."""
        while len(self._targets) < count:
            self._targets.append(self._stack.enter_context(LlamaTarget(self.model, self._settings)))
        return self._targets[:count]

    def namespace(self, name: str) -> BackendNamespace:
        """A memory of the service."""
        return self._client.namespace(name, self.fingerprint)

    def content(self, token_ids: Sequence[int]) -> ContentType:
        """What kind of text these tokens are."""
        return content_type(self.model.detokenize(token_ids))

    def _worker(self, folder: Path, stack: ExitStack) -> DraftWorkerClient | None:
        options = self.options
        if options.draft is None:
            return None
        address = f"unix:{folder / 'draft.sock'}"
        self._children.start_draft_worker(
            options.draft, address, threads=options.threads, context_size=options.context
        )
        return stack.enter_context(DraftWorkerClient(address))

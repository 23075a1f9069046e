"""Fixture of measurements on a real model: target with measured step costs, service and follower, worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from suffixsvc.runtime.child_process import ChildProcess, ChildProcesses
from suffixsvc.types import BackendNamespace
from suffixsvc_client import ClientConfig
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.profile.target_cost import measured_curve
from suffixsvc_driver.settings.text_kind import ContentType, content_type
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.llama.offload import ALL_LAYERS, Offload
from suffixsvc_driver.targets.single import LlamaTarget
from suffixsvc_driver.workers.client.grpc_client import DraftWorkerClient
from suffixsvc_follower import FollowerConfig, connect

#: bounds of the client's step timeout, seconds; between them it is the duration of a plain step
STEP_TIMEOUT: Final = (0.005, 0.05)
#: timeout of a draft model whose time is simulated
WAITING_TIMEOUT_SECONDS: Final = 60.0
#: more layers than any model has
_MANY_LAYERS: Final = 999


@dataclass(frozen=True, slots=True)
class FixtureOptions:
    """Models and limits of a fixture.

    Attributes:
        target, draft: GGUF files; None: no draft model.
        threads: of the target, and of the draft worker.
        context: tokens of a prompt and its answer.
        max_width: tokens of the widest step.
        experts: experts per token of a mixture-of-experts model, see :class:`LlamaModel`.
        again: measure the cost curve even if one is stored.
        slots: KV slots of a context; a prompt that continues a stored one is read from there on.
        rounds: measurements of each width of the cost curve.
        offload: the part of the target and of the draft model that is on GPUs.
        kv_type: of the target's KV, see :class:`ContextSettings`.
    """

    target: Path
    draft: Path | None
    threads: int
    context: int
    max_width: int
    experts: int | None = None
    again: bool = False
    slots: int = 4
    rounds: int = 5
    offload: Offload = field(default_factory=Offload)
    kv_type: str = "f16"

    def llama_arguments(self, *, drafting: bool = False) -> list[str]:
        """Options of llama.cpp's programs for the same GPUs and KV; none for the defaults of a CPU.

        Args:
            drafting: for a program that also loads the draft model.
        """
        found = [] if self.kv_type == "f16" else ["-ctk", self.kv_type, "-ctv", self.kv_type]
        if not self.offload.gpu_layers:
            return found
        layers = str(_MANY_LAYERS if self.offload.gpu_layers == ALL_LAYERS else self.offload.gpu_layers)
        found += ["-ngl", layers, *(["-ngld", layers] if drafting else [])]
        if self.offload.main_gpu is not None:
            found += ["-sm", "none", "-mg", str(self.offload.main_gpu)]
        if self.offload.tensor_split:
            found += ["-ts", ",".join(map(str, self.offload.tensor_split))]
        return found


class ModelFixture:
    """Opened by its constructor, closed by ``stack``.

    Attributes:
        model, target: the target model and a context of it.
        curve: cost of the target's steps; every step corrects it.
        settings: of the target's contexts.
        address: of the service.
        client, service: a follower of the service, and the service's process.
        fingerprint: of the target's tokenizer.
        draft_worker: process of the draft worker; None without a draft model.
        draft_seconds: seconds per token of the draft model, measured by its worker; 0 without one.
        draft_model: makes a draft model layer; None without a draft model.
        patient_draft_model: makes a draft model layer with the given p_min that waits for every draft.
    """

    def __init__(
        self,
        options: FixtureOptions,
        folder: Path,
        stack: ExitStack,
        measuring: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self.options = options
        self._folder, self._stack = folder, stack
        self.model = stack.enter_context(
            LlamaModel(options.target, experts_used=options.experts, offload=options.offload)
        )
        self.settings = ContextSettings(
            context_size=options.context,
            slots=options.slots,
            threads=options.threads,
            max_width=options.max_width,
            kv_type=options.kv_type,
        )
        self.target = stack.enter_context(LlamaTarget(self.model, self.settings))
        self._targets = [self.target]
        self.curve = measured_curve(
            self.target, rounds=options.rounds, progress=measuring, again=options.again
        )
        self.fingerprint = self.model.vocabulary.fingerprint
        self._children = stack.enter_context(ChildProcesses(folder))
        self.address = f"unix:{folder / 'service.sock'}"
        self.service = self.start_service()
        low, high = STEP_TIMEOUT
        config = ClientConfig(step_timeout_s=min(high, max(low, self.curve.seconds_per_step)))
        self.client = connect(self.address, mode="follow", config=FollowerConfig(config))
        stack.callback(self.client.close)
        self.draft_seconds = 0.0
        self.draft_worker: ChildProcess | None = None
        self.draft_model: Callable[[], Layer] | None = None
        self.patient_draft_model: Callable[[float], DraftModelLayer] | None = None
        if options.draft is not None:
            self._start_draft_worker(options.draft)

    def start_service(self) -> ChildProcess:
        """Start the service on the fixture's data folder; return when it answers."""
        self.service = self._children.start_service(self._folder / "data", self.address)
        return self.service

    def targets(self, count: int) -> Sequence[LlamaTarget]:
        """``count`` targets of the same model, each with its own context."""
        while len(self._targets) < count:
            self._targets.append(self._stack.enter_context(LlamaTarget(self.model, self.settings)))
        return self._targets[:count]

    def namespace(self, name: str) -> BackendNamespace:
        """Open a namespace of the service for the target's tokenizer."""
        return self.client.namespace(name, self.fingerprint)

    def content(self, token_ids: Sequence[int]) -> ContentType:
        """Kind of text that the tokens spell."""
        return content_type(self.model.detokenize(token_ids))

    def _start_draft_worker(self, draft: Path) -> None:
        address = f"unix:{self._folder / 'draft.sock'}"
        self.draft_worker = self._children.start_draft_worker(
            draft,
            address,
            threads=self.options.threads,
            context_size=self.options.context,
            options=self.options.offload.arguments(),
        )
        client = self._stack.enter_context(DraftWorkerClient(address))
        vocabulary, curve = self.model.vocabulary, self.curve.expected()
        self.draft_seconds = client.check_vocabulary(vocabulary).seconds_per_token
        self.draft_model = lambda: DraftModelLayer(client, vocabulary, curve=curve)
        self.patient_draft_model = lambda p_min: DraftModelLayer(
            client, vocabulary, p_min=p_min, timeout_seconds=WAITING_TIMEOUT_SECONDS
        )

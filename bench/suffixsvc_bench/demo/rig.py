"""What the demo stands on: the model with its measured costs, the service, the client, the draft worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from rich.console import Console
from suffixsvc_client import ClientConfig, ServiceStats, SuffixClient
from suffixsvc_driver.cost import live_curve
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.layers.draft_model import DraftModelLayer
from suffixsvc_driver.live_curve import LiveCurve
from suffixsvc_driver.targets.llama import LlamaTarget
from suffixsvc_driver.targets.llama_context import ContextSettings
from suffixsvc_driver.workers.client import DraftWorkerClient

from suffixsvc.children import Child, Children
from suffixsvc.errors import ServiceError
from suffixsvc_bench.demo import show
from suffixsvc_bench.demo.brain import Brain
from suffixsvc_bench.demo.remembered import drafted_within
from suffixsvc_bench.demo.setup import Chosen

__all__ = ["Rig"]

#: one per agent, and room for the exactness checks and the repair turns
SLOTS: Final = 6
MAX_WIDTH: Final = 32
#: a step of the service may cost at most a decode step of the target, within these bounds
STEP_TIMEOUT: Final = (0.005, 0.05)
#: how often each width is measured; the driver's default takes twice as long
ROUNDS: Final = 3
UP_AGAIN_SECONDS: Final = 30.0


class Rig:
    """Everything the stages of the demo use. Opened by its constructor, closed by ``stack``.

    Attributes:
        brain: answers calls.
        client: of the service.
        service: the service's process; a new one after :meth:`start_service`.
        fingerprint: of the target's tokenizer.
    """

    def __init__(
        self, chosen: Chosen, folder: Path, threads: int, context: int, console: Console, stack: ExitStack
    ) -> None:
        self._chosen, self._folder = chosen, folder
        self._threads, self._context = threads, context
        self._console, self._stack = console, stack
        settings = ContextSettings(context_size=context, slots=SLOTS, threads=threads, max_width=MAX_WIDTH)
        target = stack.enter_context(LlamaTarget(chosen.target, settings))
        live = self._curve(target)

        self._children = stack.enter_context(Children(folder))
        self._address = f"unix:{folder / 'service.sock'}"
        self.service = self.start_service()
        console.print(f"the service: process {self.service.pid}, a unix socket, an LMDB store")
        low, high = STEP_TIMEOUT
        patience = min(high, max(low, live.seconds_per_step))
        self.client = stack.enter_context(SuffixClient(self._address, ClientConfig(step_timeout_s=patience)))
        self.fingerprint = target.model.vocabulary.fingerprint
        self._namespace = self.client.namespace(f"demo/{chosen.name}", self.fingerprint)
        self.brain = Brain(target, live, self._namespace, self._draft_model(target, live.expected()))

    def start_service(self) -> Child:
        """Start the service on its folder, whatever is in it; returns once it answers."""
        self.service = self._children.start_service(self._folder / "data", self._address)
        return self.service

    def stats_when_up(self) -> ServiceStats:
        """What the service holds, once the client has found it again."""
        deadline = time.monotonic() + UP_AGAIN_SECONDS
        while True:
            try:
                return self.client.stats()
            except ServiceError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def drafted_when_up(self, prompt: Sequence[int], answer: Sequence[int]) -> int:
        """How many tokens of a remembered answer the service drafts right, once the client found it again."""
        return drafted_within(UP_AGAIN_SECONDS, self._namespace, prompt, answer)

    def _curve(self, target: LlamaTarget) -> LiveCurve:
        with show.progress(self._console) as bar:
            task = bar.add_task("measuring what a step costs (kept on disk)", total=None, visible=False)

            def on_progress(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total, visible=True)

            live = live_curve(target, rounds=ROUNDS, progress=on_progress)
        curve = live.expected()
        widths = ", ".join(f"{w}: {curve.costs[w]:.1f}" for w in (2, 4, 8, 16, 32) if w <= curve.max_width)
        self._console.print(
            f"the model: {curve.seconds_per_step * 1e3:.0f} ms for a step of one token; "
            f"a step of more tokens costs, in such steps: {widths}"
        )
        return live

    def _draft_model(self, target: LlamaTarget, curve: CostCurve) -> Callable[[], Layer] | None:
        if self._chosen.draft is None:
            return None
        address = f"unix:{self._folder / 'draft.sock'}"
        child = self._children.start_draft_worker(
            self._chosen.draft, address, threads=self._threads, context_size=self._context
        )
        client = self._stack.enter_context(DraftWorkerClient(address))
        vocabulary = target.model.vocabulary
        speed = client.check_vocabulary(vocabulary).seconds_per_token
        self._console.print(
            f"the draft worker: process {child.pid}, {self._chosen.draft.stem}, same vocabulary, "
            f"{speed * 1e3:.0f} ms a token",
            markup=False,
        )
        return lambda: DraftModelLayer(client, vocabulary, curve=curve)

"""Fixture of the demo: a model fixture that prints what it starts, and operations of the demo's stages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from rich.console import Console

from suffixsvc.errors import ServiceError
from suffixsvc_bench.demo import show
from suffixsvc_bench.demo.agent_runner import AgentRunner
from suffixsvc_bench.demo.recall import wait_for_recall
from suffixsvc_bench.demo.setup import ModelSelection
from suffixsvc_bench.speculation.model_fixture import FixtureOptions, ModelFixture
from suffixsvc_client import ServiceStats

__all__ = ["DemoFixture"]

#: one slot per agent, two for the exactness checks and the repair turns
SLOTS: Final = 6
MAX_WIDTH: Final = 32
#: measurements of each width of the cost curve; the driver's default takes longer
ROUNDS: Final = 3
RESTART_TIMEOUT_SECONDS: Final = 30.0


class DemoFixture(ModelFixture):
    """Everything the stages of the demo use.

    Attributes:
        runner: answers the agents' calls.
    """

    def __init__(
        self,
        selection: ModelSelection,
        folder: Path,
        threads: int,
        context: int,
        console: Console,
        stack: ExitStack,
    ) -> None:
        options = FixtureOptions(
            selection.target, selection.draft, threads, context, MAX_WIDTH, slots=SLOTS, rounds=ROUNDS
        )
        with show.progress(console) as bar:
            task = bar.add_task("measuring what a step costs (kept on disk)", total=None, visible=False)

            def on_progress(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total, visible=True)

            super().__init__(options, folder, stack, on_progress)
        self._namespace = self.namespace(f"demo/{selection.name}")
        self.runner = AgentRunner(self.target, self.curve, self._namespace, self.draft_model)
        self._describe(console)

    def stats_after_restart(self) -> ServiceStats:
        """Statistics of the service; retried until the client is connected again.

        Raises:
            ServiceError: the service did not answer within 30 seconds.
        """
        deadline = time.monotonic() + RESTART_TIMEOUT_SECONDS
        while True:
            try:
                return self.client.stats()
            except ServiceError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def recalled_after_restart(self, prompt: Sequence[int], answer: Sequence[int]) -> int:
        """Number of tokens of an earlier answer that the service drafts correctly after a restart."""
        return wait_for_recall(RESTART_TIMEOUT_SECONDS, self._namespace, prompt, answer)

    def _describe(self, console: Console) -> None:
        curve = self.curve.expected()
        widths = ", ".join(f"{w}: {curve.costs[w]:.1f}" for w in (2, 4, 8, 16, 32) if w <= curve.max_width)
        console.print(
            f"the model: {curve.seconds_per_step * 1e3:.0f} ms for a step of one token; "
            f"cost of wider steps by tokens, in such steps: {widths}"
        )
        console.print(f"the service: process {self.service.pid}, a unix socket, an LMDB store")
        if self.draft_worker is not None and self.options.draft is not None:
            console.print(
                f"the draft worker: process {self.draft_worker.pid}, {self.options.draft.stem}, "
                f"same vocabulary, {self.draft_seconds * 1e3:.0f} ms per token",
                markup=False,
            )

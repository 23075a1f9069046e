"""Fixture of the demo: a model fixture that prints what it starts, and its recovery after a crash."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console

from suffixsvc.errors import ServiceError
from suffixsvc.types import BackendNamespace, DraftSource
from suffixsvc_bench.demo import show
from suffixsvc_bench.demo.agent_runner import AgentRunner
from suffixsvc_bench.demo.options import DemoOptions
from suffixsvc_bench.demo.questions import Question
from suffixsvc_bench.demo.setup import ModelSelection
from suffixsvc_bench.demo.two_processes import STEPS_PER_DRAFTED_TOKEN, LiveJob
from suffixsvc_bench.replay.run import accepted_path
from suffixsvc_bench.speculation.model_fixture import FixtureOptions, ModelFixture
from suffixsvc_bench.speculation.speculator import Speculator
from suffixsvc_client import ClientConfig, ServiceStats, SuffixClient
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.targets.llama.offload import Offload

#: one slot per agent, two for the exactness checks and the repair turns
SLOTS: Final = 6
MAX_WIDTH: Final = 32
#: of a step of two processes that write in turns
LIVE_WIDTH: Final = 16
#: measurements of each width of the cost curve; the driver's default takes longer
ROUNDS: Final = 3
RESTART_TIMEOUT_SECONDS: Final = 30.0
#: pause between attempts while the client's circuit breaker is open
_AGAIN_AFTER_SECONDS: Final = 0.1
_RECALL_DRAFT_TOKENS: Final = 32
#: of a step while no model waits for it
_RECALL_TIMEOUT_SECONDS: Final = 1.0


class DemoFixture(ModelFixture):
    """Everything the stages of the demo use.

    Attributes:
        runner: answers the agents' calls.
        check: called while something is waited for.
    """

    check: Callable[[], object] = staticmethod(lambda: None)

    def __init__(
        self,
        selection: ModelSelection,
        folder: Path,
        threads: int,
        load: DemoOptions,
        console: Console,
        stack: ExitStack,
    ) -> None:
        options = FixtureOptions(
            selection.target,
            selection.draft,
            threads,
            load.context,
            MAX_WIDTH,
            slots=SLOTS,
            rounds=ROUNDS,
            offload=Offload.of(load),
            kv_type=load.kv_type_or_default,
        )
        with show.progress(console) as bar:
            task = bar.add_task("measuring what a step costs (kept on disk)", total=None, visible=False)

            def on_progress(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total, visible=True)

            super().__init__(options, folder, stack, on_progress)
        self._path = f"demo/{selection.name}"
        namespace = self.namespace(self._path)
        speculator = Speculator(self.target, self.curve, namespace, self.draft_model)
        self.runner = AgentRunner(self.model, speculator)
        self._describe(console)

    def recover(self, prompt: Sequence[int], answer: Sequence[int]) -> tuple[ServiceStats, int]:
        """Statistics of the service after a restart, and the tokens of an earlier answer that it drafts.

        A new client asks, because the follower has copies of everything. Both are retried until the service
        answers and drafts any of the tokens.

        Raises:
            ServiceError: the service did not answer within 30 seconds.
        """
        deadline = time.monotonic() + RESTART_TIMEOUT_SECONDS
        with SuffixClient(self.address, ClientConfig(step_timeout_s=_RECALL_TIMEOUT_SECONDS)) as client:
            while True:
                try:
                    stats = client.stats()
                    break
                except ServiceError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(_AGAIN_AFTER_SECONDS)
            namespace = client.namespace(self._path, self.fingerprint)
            deadline = time.monotonic() + RESTART_TIMEOUT_SECONDS
            while not (right := count_recalled_tokens(namespace, prompt, answer)):
                if time.monotonic() > deadline:
                    break
                time.sleep(_AGAIN_AFTER_SECONDS)
        return stats, right

    def live_job(self, questions: tuple[Question, Question]) -> LiveJob:
        """The job of two processes that write in turns, in a namespace that only they write to."""
        curve = CostCurve.linear(
            STEPS_PER_DRAFTED_TOKEN, LIVE_WIDTH, seconds_per_step=self.curve.seconds_per_step
        )
        return LiveJob(
            self.options.target,
            # both read their prompts, and check their answers, at the same time
            replace(self.settings, threads=max(1, self.options.threads // 2), slots=1),
            self.options.offload,
            curve,
            self.address,
            f"{self._path}/live",
            questions,
        )

    def _describe(self, console: Console) -> None:
        curve = self.curve.expected()
        widths = ", ".join(f"{w}: {curve.costs[w]:.1f}" for w in (2, 4, 8, 16, 32) if w <= curve.max_width)
        if self.options.offload.gpu_layers:
            console.print(f"on {self.model.device}", markup=False)
        console.print(
            f"the model: {curve.seconds_per_step * 1e3:.0f} ms for a step of one token; "
            f"cost of wider steps by tokens, in such steps: {widths}"
        )
        console.print(
            f"the service: process {self.service.pid}, a unix socket, an LMDB store; this process follows it"
        )
        if self.draft_worker is not None and self.options.draft is not None:
            console.print(
                f"the draft worker: process {self.draft_worker.pid}, {self.options.draft.stem}, "
                f"same vocabulary, {self.draft_seconds * 1e3:.0f} ms per token",
                markup=False,
            )


def count_recalled_tokens(namespace: BackendNamespace, prompt: Sequence[int], answer: Sequence[int]) -> int:
    """Count the tokens of an answer that the service drafts correctly from other outputs, without a model.

    The session is discarded afterwards; what the service learned about its draft probabilities remains.
    """
    truth = np.asarray(answer, np.int32)
    session = namespace.open_session(prompt)
    at, right, new = 0, 0, truth[:0]
    try:
        while at < len(truth):
            draft = session.step(new, _RECALL_DRAFT_TOKENS)
            path = accepted_path(draft, truth[at:])
            right += sum(int(draft.sources[i]) == DraftSource.NAMESPACE for i in path)
            new = truth[at : at + len(path) + 1]
            at += len(new)
    finally:
        session.close(commit=False)
    return right

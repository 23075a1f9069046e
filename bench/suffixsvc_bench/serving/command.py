"""Driver of ``suffixsvc bench http``: its parts in order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from suffixsvc.errors import ServiceUnavailableError, SuffixError
from suffixsvc.runtime.child_process import ChildProcesses
from suffixsvc_bench.decode.figures import ratio_of
from suffixsvc_bench.decode.workload.jobs import AnsweredJob, Job, Workload, load_workloads
from suffixsvc_bench.decode.workload.prepared import PreparedAnswers
from suffixsvc_bench.report.provenance import provenance
from suffixsvc_bench.serving.figures import CountTokens, best_mode, overhead, rows_of, schema_ratios
from suffixsvc_bench.serving.options import PARTS, HttpOptions, check_options
from suffixsvc_bench.serving.phases.agreement import agreement
from suffixsvc_bench.serving.phases.conversation import QUESTIONS, run_conversation
from suffixsvc_bench.serving.phases.json_schema import run_schemas, schema_tasks
from suffixsvc_bench.serving.phases.one_client import WARMUP, run_one_client
from suffixsvc_bench.serving.phases.several_clients import groups_of, run_several_clients
from suffixsvc_bench.serving.results import Measured
from suffixsvc_bench.serving.servers.client import Reply
from suffixsvc_bench.serving.servers.direct import DIRECT, DirectDriver
from suffixsvc_bench.serving.servers.idle import IdleWatch
from suffixsvc_bench.serving.servers.process import (
    DRAFT_MODEL,
    DRAFTS,
    LLAMA_PLAIN,
    NO_DRAFTS,
    LlamaServer,
    OpenAIProcess,
    ServerProcess,
    llama_servers,
)
from suffixsvc_bench.serving.servers.subject import Subject
from suffixsvc_bench.speculation.paired import Pair
from suffixsvc_driver.profile.target_cost import key_of
from suffixsvc_driver.targets.llama.attention import choose_flash_attention
from suffixsvc_driver.targets.llama.context_settings import ContextSettings
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.single import LlamaTarget

#: called with (current task, completed fraction of the run, 0..1)
Notify = Callable[[str, float], None]
Keep = Callable[[Measured], None]
#: of a turn of the conversation: twenty of them fit into the context
_TURN_TOKENS: Final = 64


def run_http(
    options: HttpOptions,
    notify: Notify = lambda what, done: None,
    keep: Keep = lambda measured: None,
) -> Measured:
    """Run the benchmark. Nothing else should run beside it: llama.cpp's threads spin.

    Args:
        options: what to compare.
        notify: called with the current task and the completed fraction.
        keep: called with all results so far after each workload and part.

    Raises:
        SuffixError: an option is invalid (before the first measurement), or a server fails.
    """
    check_options(options)
    measured = Measured(provenance(), options.target.name, options.as_dict())
    with ExitStack() as stack:
        run = _open(options, measured, notify, keep, stack)
        for part in options.parts or PARTS:
            run.run(part)
            keep(measured)
    return measured


def _open(options: HttpOptions, measured: Measured, notify: Notify, keep: Keep, stack: ExitStack) -> _Run:
    fixture = options.fixture()
    children = stack.enter_context(ChildProcesses(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
    model = stack.enter_context(LlamaModel(options.target, offload=fixture.offload))
    settings = ContextSettings(
        context_size=fixture.context,
        slots=fixture.slots,
        threads=fixture.threads,
        max_width=fixture.max_width,
        kv_type=fixture.kv_type,
    )
    # the attention of the server: the driver's time per token is compared with the server's
    attention = choose_flash_attention(model, settings, shared=True)
    target = stack.enter_context(LlamaTarget(model, replace(settings, flash_attention=attention)))
    driver = DirectDriver(target)

    def write(job: Job) -> Sequence[int]:
        notify(f"preparing: {job.key}", 0.0)
        return driver.answer(job).token_ids

    answer = PreparedAnswers(options.prepared, key_of(target).model, write)
    peers: list[LlamaServer] = []
    if options.llama_bin is not None:
        peers = llama_servers(options.llama_bin, options.llama_modes, fixture, fixture.slots, children)
    measured.reference = LLAMA_PLAIN if peers else DIRECT
    names = [NO_DRAFTS, DRAFTS, *([DRAFT_MODEL] if fixture.draft is not None else [])]
    plain, drafting, *more = (OpenAIProcess(fixture, fixture.slots, children, name) for name in names)
    workloads = load_workloads(options.workload_choice, model, answer)
    return _Run(
        options, driver, plain, drafting, more, peers, workloads, lambda text: len(model.tokenize(text)),
        measured, notify, keep,
    )  # fmt: skip


@dataclass(slots=True)
class _Run:
    """A run on one model."""

    options: HttpOptions
    driver: DirectDriver
    plain: OpenAIProcess
    drafting: OpenAIProcess
    with_draft_model: Sequence[OpenAIProcess]
    peers: Sequence[LlamaServer]
    workloads: Sequence[Workload]
    count: CountTokens
    measured: Measured
    notify: Notify
    keep: Keep
    watch: IdleWatch = field(default_factory=IdleWatch)

    def run(self, part: str) -> None:
        """Run one of :data:`PARTS`."""
        parts = (self._one_client, self._several_clients, self._conversation, self._schema)
        try:
            parts[PARTS.index(part)]()
        finally:
            for server in self._servers():
                server.stop()
        self.measured.idle = self.watch.shares()

    def _servers(self) -> list[ServerProcess]:
        """Compared servers are neighbours: without drafts and plain, with drafts and the other modes."""
        return [self.plain, *self.peers[:1], self.drafting, *self.peers[1:], *self.with_draft_model]

    # -- one client

    def _one_client(self) -> None:
        subjects: list[Subject] = [self.driver, *self._servers()]
        answers = len(subjects) * self.options.rounds * sum(len(each.jobs) for each in self.workloads)
        done = 0
        warmed_by: Sequence[AnsweredJob] = ()
        for workload in self.workloads:
            failed: dict[str, str] = {}
            # one warm-up serves all workloads that have the same: each takes minutes per server
            started = bool(warmed_by) and warmed_by == workload.warmup

            def on_answer(subject: str, what: str, name: str = workload.name) -> None:
                nonlocal done
                self.notify(f"{name}: {what}, {subject}", min(1.0, done / max(1, answers)))
                done += what != WARMUP

            def on_failure(subject: str, error: SuffixError, failed: dict[str, str] = failed) -> None:
                failed[subject] = str(error)

            replies = run_one_client(
                workload, subjects, self.options.rounds, self.watch, on_answer, on_failure, started=started
            )
            if failed:
                self.measured.failed[workload.name] = failed
            warmed_by = () if failed else workload.warmup
            self._summarise(workload, replies)
            self.keep(self.measured)

    def _summarise(self, workload: Workload, replies: Mapping[str, Sequence[Reply]]) -> None:
        measured = self.measured
        self.notify(f"{workload.name}: comparing the answers", 1.0)
        jobs = list(workload.jobs) * self.options.rounds
        references = replies[DIRECT]
        agreements = {name: agreement(self.driver, jobs, references, its) for name, its in replies.items()}
        measured.replies[workload.name] = replies
        measured.rows += rows_of(workload, replies, measured.reference, agreements, self.count)
        best = best_mode(workload, replies, self.count)
        if best is not None:
            measured.best.append(best)
        measured.overhead = overhead(measured.replies.values(), self.count)

    # -- the other parts

    def _several_clients(self) -> None:
        measured, options = self.measured, self.options
        subjects = [self.plain, *self.peers[:1], self.drafting]
        groups = groups_of(self.workloads, options.parallel, options.calls)
        answers, done = len(subjects) * len(groups) * options.rounds, 0

        def on_answer(subject: str, what: str) -> None:
            nonlocal done
            self.notify(f"{options.parallel} clients: {what}, {subject}", min(1.0, done / max(1, answers)))
            done += what != WARMUP

        found = run_several_clients(self.workloads, groups, subjects, options.rounds, self.watch, on_answer)
        measured.client_outcomes = dict(found)
        reference = found[LLAMA_PLAIN if self.peers else NO_DRAFTS]
        for name, outcomes in found.items():
            pairs = [Pair(str(i), "", *both) for i, both in enumerate(zip(outcomes, reference, strict=True))]
            counted = [pair for pair in pairs if pair.outcome.speed > 0 and pair.reference.speed > 0]
            if counted:
                measured.clients[name] = ratio_of(counted)

    def _conversation(self) -> None:
        questions = [QUESTIONS[i % len(QUESTIONS)] for i in range(self.options.turns)]
        for subject in (self.drafting, *self.peers[:1]):

            def on_turn(number: int, name: str = subject.name) -> None:
                self.notify(f"conversation: turn {number + 1}, {name}", number / len(questions))

            self.measured.conversations[subject.name] = run_conversation(
                subject, questions, min(_TURN_TOKENS, self.options.max_tokens), on_turn
            )
            subject.stop()

    def _schema(self) -> None:
        tasks = schema_tasks(self.options.calls)
        for subject in (self.drafting, *self.peers[:1]):

            def on_task(key: str, name: str = subject.name) -> None:
                self.notify(f"JSON schema: {key}, {name}", 1.0)

            try:
                pairs = run_schemas(subject, tasks, self.options.max_tokens, self.options.rounds, on_task)
            except ServiceUnavailableError as error:
                self.measured.failed.setdefault("schema", {})[subject.name] = str(error)
                continue
            finally:
                subject.stop()
            self.measured.schemas[subject.name] = pairs
            self.measured.schema_ratios[subject.name] = schema_ratios(pairs, self.count)

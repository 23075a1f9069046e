"""The model with its lanes, scheduler and stored outputs, for the calls of many clients.

start ──> session with the prompt ──> scheduler ──> events of the call
                                          │
                                          └──> end of the session, in a thread that waits for the disk
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc.types import Mode
from suffixsvc_driver.cost.live_curve import LiveCurve
from suffixsvc_driver.decode.chat_session import prompt_tokens
from suffixsvc_driver.decode.detokenize_stream import StopStrings
from suffixsvc_driver.decode.fair_queue import Share
from suffixsvc_driver.decode.generation import Request, Result
from suffixsvc_driver.decode.requests import Outcome
from suffixsvc_driver.decode.running_batch import RunningBatch
from suffixsvc_driver.decode.scheduler import Load, Scheduler
from suffixsvc_driver.drafts.events import FinishReason
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.profile.start_curve import start_curve
from suffixsvc_driver.sampling.structured import Structured
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets.llama.context_settings import ContextSettings
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.llama.offload import Offload
from suffixsvc_driver.targets.llama.passing_thread import in_passing_thread
from suffixsvc_driver.targets.llama.structured_grammar import StructuredGrammar
from suffixsvc_driver.targets.parallel import ParallelLlama
from suffixsvc_openai.engine.attempts import RecentRequests
from suffixsvc_openai.engine.calibrators import Calibrators
from suffixsvc_openai.engine.call import Call, Ended, Job
from suffixsvc_openai.engine.drafting import Drafting, DraftingSettings, close_layers, predicted_tokens
from suffixsvc_openai.engine.fair_threads import FairThreads
from suffixsvc_openai.engine.memory import NotStored, Stored, open_memory
from suffixsvc_openai.engine.observer import Observer
from suffixsvc_openai.engine.plans import Caller, Plan

_log = structlog.get_logger(__name__)

#: threads that tokenize prompts and open sessions
_STARTERS: Final = 4
#: threads that do so for answers with a grammar
_COMPILERS: Final = 2
#: batches in a row that fail where the model does, not a request
_FAILED_BATCHES: Final = 3

#: called after an answer has ended, in a thread of the engine
OnEnd = Callable[[Call, Job, Outcome], None]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the engine loads.

    Attributes:
        model: a GGUF file.
        context: its context; ``slots`` lanes.
        queue_size: largest number of answers that wait for a lane.
        data: folder of the stored outputs.
        service: address of a service that stores them instead; without either they stay in memory.
        mode: who drafts from a service's outputs, see ``suffixsvc_follower.connect``.
        driver: decides what is drafted.
        drafting: what drafts.
        offload: the part of the model that is on GPUs.
        experts_used: experts per token of a mixture-of-experts model; None: the file's number.
    """

    model: Path
    context: ContextSettings
    queue_size: int = 256
    data: Path | None = None
    service: str | None = None
    mode: Mode = "auto"
    driver: DriverConfig = field(default_factory=DriverConfig)
    drafting: DraftingSettings = field(default_factory=DraftingSettings)
    offload: Offload = field(default_factory=Offload)
    experts_used: int | None = None


def _load(settings: EngineSettings, opened: ExitStack) -> tuple[LiveCurve, ParallelLlama]:
    """Load the model, measure the cost of its steps, and create its lanes; ``opened`` closes them."""
    model = LlamaModel(settings.model, experts_used=settings.experts_used, offload=settings.offload)
    opened.enter_context(model)
    curve = start_curve(model, settings.context)
    return curve, opened.enter_context(ParallelLlama(model, settings.context))


class Engine(ClosedOnExit):
    """A loaded model that generates the answers of concurrent calls. Thread-safe; close it at the end.

    Args:
        settings: what to load.
        on_end: see :data:`OnEnd`.
        observer: receives the events of every answer.
        principals: returns the number of principals that may send requests at this moment. Several get equal
            shares of the lanes, of the queue and of the namespaces; a single one gets all of them.

    Attributes:
        model: the loaded model.
        context_size: tokens of a prompt and its answer together.
        lanes, queue_size: largest numbers of answers on lanes and in the queue.
        texts: bytes of every token.
        drafting: makes the layers.
        calibrators: what the layers' drafts are worth, by principal.
        curve: cost of the model's steps, as learned so far.
        log: of the stored outputs; None: a service has it.

    Raises:
        ModelError: the model cannot be loaded.
        StoreError, InvalidConfigError: the stored outputs cannot be opened.
        VocabularyMismatchError, ServiceUnavailableError: of the draft model.
    """

    def __init__(
        self,
        settings: EngineSettings,
        on_end: OnEnd = lambda _call, _job, _outcome: None,
        observer: Observer | None = None,
        principals: Callable[[], int] = lambda: 1,
    ) -> None:
        self._on_end, self._observer = on_end, observer or Observer()
        self._principals = principals
        self._numbers = itertools.count(1)
        self._unfinished: set[Job] = set()
        self._requests = RecentRequests()
        self.calibrators = Calibrators()
        with ExitStack() as opened:
            # the scheduler's thread generates
            self.curve, target = in_passing_thread(partial(_load, settings, opened))
            self._target, self.model = target, target.model
            self.texts = self.model.vocabulary.texts
            self.context_size, self.lanes, self.queue_size = (
                target.context_size,
                target.lanes,
                settings.queue_size,
            )
            self.eog_ids = target.eog_ids
            # characters: as many tokens as fit, and a few more
            self._longest_text = (self.context_size + 8) * max(map(len, self.texts))
            tokenizer = self.model.vocabulary.fingerprint
            self._memory = opened.enter_context(
                open_memory(
                    settings.data, settings.service, self.model.digest, tokenizer, principals, settings.mode
                )
            )
            self.log = self._memory.log
            self._readers = ThreadPoolExecutor(1, "suffixsvc-stored")
            opened.callback(self._readers.shutdown, cancel_futures=True)
            self.drafting = opened.enter_context(Drafting(settings.drafting, target, self.curve))
            # closed in reverse: answers end, then their sessions, then what these use
            self._closer = ThreadPoolExecutor(1, "suffixsvc-sessions")
            opened.callback(self._closer.shutdown)
            self._starters = ThreadPoolExecutor(_STARTERS, "suffixsvc-calls")
            self._starting = FairThreads(self._starters, _STARTERS)
            # its calibrator serves requests without one: every answer here has that of its principal
            self._batch = RunningBatch(
                target, settings.driver, self.curve, Calibrator(), time.perf_counter, self._observer.batch
            )
            self._scheduler = opened.enter_context(Scheduler(self._batch, settings.queue_size))
            opened.callback(self._starters.shutdown)
            self._compilers = ThreadPoolExecutor(_COMPILERS, "suffixsvc-compilers")
            self._compiling = FairThreads(self._compilers, _COMPILERS)
            opened.callback(self._compilers.shutdown)
            # the first answer with a grammar would wait for it
            self._compilers.submit(self._target.compiler.prepare)
            self._opened = opened.pop_all()

    @property
    def most_answers(self) -> int:
        """Largest number of answers of a call."""
        return self._scheduler.most(self._share(Caller()), self._whole)

    @property
    def load(self) -> Load:
        """Answers on lanes and in the queue."""
        return self._scheduler.load

    @property
    def failure(self) -> str | None:
        """Why no answer can be generated; None while that is not known. A later step can prove it wrong."""
        if self._scheduler.ended:
            return "the thread that generates has ended"
        failed = self._batch.failed_batches
        return f"{failed} batches in a row have failed" if failed >= _FAILED_BATCHES else None

    @property
    def kv_use(self) -> tuple[int, int]:
        """Tokens in the KV, and how many fit."""
        return self._target.kv_use

    async def stored(self, principal: str) -> list[Stored]:
        """Return the namespaces of a principal; see :meth:`Memory.stored`.

        It may wait for a service, in a thread that no answer needs.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._memory.stored, principal)

    @property
    def unfinished(self) -> int:
        """Answers that are being submitted, wait, run, or whose output is being stored."""
        return len(self._unfinished)

    def stop(self) -> None:
        """Cancel all answers; later ones are refused. Idempotent."""
        self._scheduler.close()

    def close(self) -> None:
        """Cancel all answers, store what they have, and free everything. Idempotent."""
        self._opened.close()

    def tokenize(self, text: str, *, plain: bool = False) -> tuple[int, ...]:
        """Return the tokens of a whole prompt.

        Of a text that is far too long for the context, these are the first ones, more than fit: tokenizing
        all of it takes seconds of a thread that other requests need.

        Args:
            text: the text.
            plain: special tokens are not recognised, and no BOS token is prepended.
        """
        begin = text[: self._longest_text]
        tokens = self._tokens(begin, plain)
        whole = len(begin) == len(text) or len(tokens) > self.context_size
        return tokens if whole else self._tokens(text, plain)  # of a tokenizer that drops characters

    def _tokens(self, text: str, plain: bool) -> tuple[int, ...]:
        return tuple(
            self.model.tokenize(text, parse_special=False) if plain else prompt_tokens(self.model, text)
        )

    def compile(self, grammar: Structured) -> StructuredGrammar:
        """Compile a grammar, in bounded time. Blocks.

        Raises:
            GrammarError: it is malformed, not supported, or takes too long.
        """
        return self._target.compiler.compile(grammar)

    async def start(self, plans: Sequence[Plan], arrived: float | None = None) -> Call:
        """Submit answers that are generated at the same time as far as lanes are free: all or none.

        Args:
            plans: of each answer, at most ``most_answers``, of one caller.
            arrived: when the request was read, on the clock ``time.monotonic``; None: now.

        Raises:
            QueueFullError: the queue is full.
            LimitExceededError: there are too many answers.
            ServiceUnavailableError: the engine is closed.
            SuffixError: the namespace or the labels are invalid.
        """
        call = Call(plans, time.monotonic() if arrived is None else arrived)
        try:
            await asyncio.get_running_loop().run_in_executor(self._starters, self._start, call)
        except BaseException:
            self.cancel(call)
            raise
        return call

    async def run(
        self, function: Callable[[], Sequence[Plan]], principal: str, *, compiles: bool = False
    ) -> Sequence[Plan]:
        """Run a function that prepares answers in a thread of the engine.

        Args:
            function: the function.
            principal: for whom; those that wait for a thread take turns.
            compiles: it compiles a grammar, which may take seconds: others do not wait for its thread.
        """
        threads = self._compiling if compiles else self._starting
        return await threads.run(principal, function)

    def cancel(self, call: Call) -> None:
        """End the answers of a call, within one step. Idempotent."""
        with call.lock:
            call.cancelled = True
            tickets = [job.ticket for job in call.jobs if job.ticket is not None]
        for ticket in tickets:
            self._scheduler.cancel(ticket)

    # -- threads of the engine

    def _start(self, call: Call) -> None:
        """Open the sessions and submit the answers of a call; the caller cancels it after an error."""
        self._unfinished.update(call.jobs)
        try:
            requests = [self._request(call, job) for job in call.jobs if not call.cancelled]
            with call.lock:
                if not call.cancelled:
                    self._submit(call, requests)
        finally:
            refused = [job for job in call.jobs if job.ticket is None]
            for job in refused:
                self._discard(job)
            self._unfinished.difference_update(refused)

    def _request(self, call: Call, job: Job) -> Request:
        """Open the session of an answer, and return its request."""
        plan = job.plan
        namespace = self._memory.path_of(plan.caller, plan.caller.name)
        opened = self._memory.open(plan.caller, plan.prompt_ids)
        if isinstance(opened, NotStored):
            job.not_stored = opened
        else:
            job.session = opened
        repeated = plan.caller.repeated
        job.attempts = self._requests.attempts(namespace, plan.prompt_ids, job.index, repeated=repeated)
        job.layers = self.drafting.layers(plan, job.session)
        stop = StopStrings(plan.stops, self.texts.__getitem__) if plan.stops else None
        room = self.context_size - len(plan.prompt_ids)
        return Request(
            plan.prompt_ids,
            job.layers,
            room if plan.max_tokens is None else min(plan.max_tokens, room),
            plan.sampling,
            stop,
            calibrator=self.calibrators.of(plan.caller.principal),
            on_step=partial(call.on_step, job.index),
            principal=plan.caller.principal,
            prompt_logprobs=plan.prompt_logprobs,
            on_prompt=partial(call.on_prompt, job.index),
        )

    def _submit(self, call: Call, requests: Sequence[Request]) -> None:
        for job in call.jobs:
            job.number = next(self._numbers)
            self._observer.begun(job.number, job.plan, job.progress)
        ends = [partial(self._done, call, job) for job in call.jobs]
        share = self._share(call.jobs[0].plan.caller)
        tickets = self._scheduler.submit_all(list(zip(requests, ends, strict=True)), share, self._whole)
        for job, ticket in zip(call.jobs, tickets, strict=True):
            job.ticket = job.progress.ticket = ticket

    def _share(self, caller: Caller) -> Share:
        """Return the share of a caller: a client chooses the name of its namespace, but not its principal."""
        return caller.principal, caller.name

    @property
    def _whole(self) -> int:
        """Levels of a share that are not divided: a single principal gets all of the queue."""
        return 1 if self._principals() == 1 else 0

    def _discard(self, job: Job) -> None:
        """Close the session and the layers of an answer that was not submitted."""
        if job.number:
            self._observer.refused(job.number)
        close_layers(job.layers)
        if job.session is not None:
            self._memory.end(job.session, (), 0, store=False, incomplete=False)

    # -- the scheduler's thread

    def _done(self, call: Call, job: Job, outcome: Outcome) -> None:
        job.ended = time.monotonic()
        self._closer.submit(self._end, call, job, outcome)
        call.put(Ended(job.index, outcome, predicted_tokens(job.layers)))

    # -- the thread of sessions

    def _end(self, call: Call, job: Job, outcome: Outcome) -> None:
        try:
            with call.lock:  # held until the ticket of the submission is noted
                job.started = None if job.ticket is None else job.ticket.started
            call.ended += 1
            self._store(job, outcome)
        except Exception:
            _log.exception("the end of a call failed")
        try:  # after what must not be lost, whatever metrics and live page do
            self._observer.ended(job.number, outcome)
            self._on_end(call, job, outcome)
        except Exception:
            _log.exception("the end of a call could not be reported")
        finally:
            self._unfinished.discard(job)

    def _store(self, job: Job, outcome: Outcome) -> None:
        """Close the layers and the session of an answer that has ended."""
        try:
            close_layers(job.layers)
        finally:
            result = outcome if isinstance(outcome, Result) else None
            caller = job.plan.caller
            if job.session is not None:
                job.not_stored = self._memory.end(
                    job.session,
                    () if result is None else result.token_ids,
                    len(job.plan.prompt_ids),
                    store=caller.store,
                    incomplete=result is not None and result.finish is FinishReason.CANCELLED,
                    attempts=job.attempts,
                    path=self._memory.path_of(caller, caller.name),
                )
            elif not caller.store:
                job.not_stored = NotStored.NO_STORE

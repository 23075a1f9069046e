"""Generations that share the batches of one target; they join when a lane is free and leave at any time.

    add ──> free lane ──> prefill, a batch per step ──> steps with the others ──> outcome
                                                              │
      each step   every generation queries its layers and proposes a draft  │  Next -> .. -> Propose
                  the batch is allocated to the tokens that gain most       │  BudgetGrant -> Verify
                  one batch; every generation takes its part                │  StepResult -> Wait or Finish

Each generation is a :class:`~suffixsvc_driver.decode.generation.Generation` with an independent end. Prefill
is not part of a step: at most one batch of one prompt is computed between two steps, which bounds the delay
that a new request adds to running generations. Which prompt: :mod:`~suffixsvc_driver.decode.prefill_order`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field

from suffixsvc.errors import InvalidInputError, ModelError
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.live_curve import LiveCurve
from suffixsvc_driver.decode.generation import Generation, Request
from suffixsvc_driver.decode.prefill_order import Filling, PrefillOrder
from suffixsvc_driver.decode.requests import Failure, Outcome
from suffixsvc_driver.drafts.events import (
    BudgetGrant,
    Finish,
    FinishReason,
    Next,
    Propose,
    StepResult,
    TokenLogprobs,
    Verify,
)
from suffixsvc_driver.policy.batch_budget import allocate_budget
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.policy.expected_gain import RunningRate
from suffixsvc_driver.settings.driver_config import DriverConfig, Policy
from suffixsvc_driver.targets import LaneStep, ParallelTarget, Prefilled


@dataclass(slots=True, eq=False)
class Running:
    """Request on a lane. ``done`` is called once with its outcome, unless it is cancelled."""

    lane: int
    generation: Generation
    done: Callable[[Outcome], None]
    filling: Filling
    reused: int = 0  # cached tokens of the prompt, once its prefill has begun
    prefill_seconds: float = 0.0
    scores: list[TokenLogprobs] = field(default_factory=list)
    proposal: Propose = field(default_factory=Propose)
    verify: Verify = field(default_factory=Verify)
    other_tokens: int = 0

    @property
    def base(self) -> int:
        """Tokens in the next batch without drafts."""
        return 1 + self.generation.replay

    @property
    def expected(self) -> int:
        """Tokens of the prompt that are or have to be computed, and emitted tokens."""
        return len(self.generation.prompt) - self.reused + self.generation.emitted

    @property
    def served(self) -> int:
        """Computed tokens of the prompt, and emitted tokens."""
        if not self.filling.begun:
            return 0
        # the last token of the prompt is computed in the first step
        return self.expected - self.filling.missing - (not self.generation.emitted)


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """Record of one shared step.

    Attributes:
        lanes: generations that took part.
        emitted: tokens that they emitted.
        seconds: of the step, queries and bookkeeping included.
        plain_seconds: of as many tokens in steps without drafts, by the cost curve; 0 if that is unknown.
    """

    lanes: int
    emitted: int
    seconds: float
    plain_seconds: float


class RunningBatch:
    """The generations of a target that run at the same time. Not thread-safe.

    Args:
        target: the target.
        config: settings of all requests.
        curve: cost of the target's steps by the tokens of the whole batch; a LiveCurve learns from them.
        calibrator: learned statistics of the layers by name, which the requests continue.
        clock: seconds, for statistics and for the cost of steps and queries; no deadline depends on it.
        on_batch: called after every step.

    Attributes:
        failed_batches: failures of the model since its last complete step.
    """

    def __init__(
        self,
        target: ParallelTarget,
        config: DriverConfig,
        curve: CostCurve | LiveCurve,
        calibrator: Calibrator,
        clock: Callable[[], float],
        on_batch: Callable[[BatchRecord], None] | None = None,
    ) -> None:
        self._target, self._config, self._calibrator, self._clock = target, config, calibrator, clock
        self._curve, self._on_batch = curve, on_batch
        self.failed_batches = 0
        self._rate = RunningRate(config.rate_decay)
        self._free = list(range(target.lanes))
        self._order = PrefillOrder(shares=target.shares_prefixes)
        self._filling: list[Running] = []  # in order of arrival
        self._writing: list[Running] = []

    @property
    def lanes(self) -> int:
        """Number of lanes. Thread-safe."""
        return self._target.lanes

    @property
    def full(self) -> bool:
        """Whether every lane has a request."""
        return not self._free

    @property
    def idle(self) -> bool:
        """Whether no lane has a request."""
        return not (self._filling or self._writing)

    # -- start and end of requests

    def check(self, request: Request) -> None:
        """Validate a request's prompt. Thread-safe.

        Raises:
            InvalidInputError: not a request.
            InvalidTokensError: an empty prompt, or ids outside the vocabulary.
            LimitExceededError: a prompt longer than the context.
        """
        if not isinstance(request, Request):
            raise InvalidInputError("request must be a Request", got=type(request).__name__)
        self._target.check(request.prompt_ids)

    def add(self, request: Request, done: Callable[[Outcome], None]) -> Running:
        """Assign a request to a free lane; it is prefilled by later calls of :meth:`advance`.

        Raises:
            The errors of :meth:`check`, and those of :class:`Generation`. Nothing changes.
        """
        lane = self._target.lane_for(request.prompt_ids, self._free, request.principal)
        generation = Generation(
            self._target, request, self._config, self._curve, self._clock, self._calibrator, self._rate
        )
        self._free.remove(lane)
        fresh = request.prompt_logprobs is not None
        filling = Filling(generation.prompt, request.principal, fresh=fresh)
        running = Running(lane, generation, done, filling)
        self._filling.append(running)
        return running

    def cancel(self, running: Running) -> None:
        """End a request between two calls of :meth:`advance`; its lane is free at once, with its KV.

        The outcome is what it has generated, or a Failure (CancelledError) before its first step. Nothing
        happens if it has ended.
        """
        if running in self._filling:
            self._end(running, Failure(CancelledError()))
        elif running in self._writing:
            outcome: Outcome
            try:
                outcome = running.generation.finish(FinishReason.CANCELLED)
            except Exception as err:  # of this request only
                outcome = Failure(err)
            self._end(running, outcome)

    def fail_all(self, error: Exception) -> None:
        """End every request with this error."""
        for running in (*self._filling, *self._writing):
            self._fail(running, error)

    def advance(self) -> None:
        """Compute one batch of one incomplete prompt, then one step of all generations."""
        if self._filling:
            self._fill(self._next_prompt())
        if self._writing:
            self._step()

    def _next_prompt(self) -> Running:
        for running in self._filling:
            filling = running.filling
            if filling.begun:
                continue
            if filling.fresh:
                filling.missing = len(filling.prompt) - 1
            else:
                filling.missing = self._target.missing(running.lane, filling.prompt, filling.principal)
        return self._filling[self._order.next([running.filling for running in self._filling])]

    def _fill(self, running: Running) -> None:
        """Prefill a batch of the prompt; after the last one the generation takes part in steps."""
        before = self._clock()
        lane, filling = running.lane, running.filling
        outcome: Outcome | None = None
        try:
            if not filling.begun:
                # late, so that prefixes shared with earlier prompts are already computed
                prompt, principal = filling.prompt, filling.principal
                running.reused = self._target.begin(lane, prompt, principal, fresh=filling.fresh)
                self._target.park(self._free)
                filling.begun = True
            self._compute_prompt(running)
            running.prefill_seconds += self._clock() - before
            if filling.missing:
                return
            prefilled = Prefilled(running.reused, len(filling.prompt) - 1 - running.reused)
            generation = running.generation
            if isinstance(generation.begin(prefilled, running.prefill_seconds, batched=True), Finish):
                outcome = generation.finish()
        except Exception as err:  # of this request only
            self.failed_batches += isinstance(err, ModelError)
            outcome = Failure(err)
        if outcome is not None:
            self._end(running, outcome)
            return
        self._filling.remove(running)
        self._writing.append(running)

    def _compute_prompt(self, running: Running) -> None:
        """Compute a batch of the prompt, with logits if its log probabilities are asked for."""
        request, filling = running.generation.request, running.filling
        if request.prompt_logprobs is None:
            filling.missing = self._target.prefill(running.lane)
            return
        filling.missing, found = self._target.score(running.lane, request.prompt_logprobs)
        running.scores += found
        if not filling.missing and request.on_prompt is not None:
            request.on_prompt(tuple(running.scores))

    def _fail(self, running: Running, error: Exception) -> None:
        self._end(running, Failure(error))

    def _end(self, running: Running, outcome: Outcome) -> None:
        self._release(running)
        running.done(outcome)

    def _release(self, running: Running) -> None:
        for stage in (self._filling, self._writing):
            if running in stage:
                stage.remove(running)
        self._free.append(running.lane)
        self._free.sort()

    # -- shared steps

    def _step(self) -> None:
        began = self._clock()
        self._propose()
        if not self._writing:
            return
        self._allocate()
        steps = [
            LaneStep(
                r.lane,
                r.verify.token_ids,
                r.generation.sampler,
                r.generation.left,
                r.generation.request.stop,
                r.verify.parents,
            )
            for r in self._writing
        ]
        before = self._clock()
        try:
            seen = self._target.verify_many(steps)
        except ModelError as err:
            self.failed_batches += 1
            for running in tuple(self._writing):
                self._fail(running, err)
            return
        self.failed_batches = 0
        seconds = self._clock() - before
        base = sum(r.base for r in self._writing)
        width = base + sum(len(s.drafted) for s in steps)
        for running, found in zip(tuple(self._writing), seen, strict=True):
            self._process(running, found, seconds)
        if isinstance(self._curve, LiveCurve):  # once per batch, even if generations of it have failed
            self._curve.observe(width, seconds, base)
        if self._on_batch is not None:
            emitted = sum(len(found.emitted) for found in seen if not isinstance(found, Exception))
            plain = self._plain_seconds(len(steps)) * emitted / len(steps)
            self._on_batch(BatchRecord(len(steps), emitted, self._clock() - began, plain))

    def _plain_seconds(self, lanes: int) -> float:
        """Return the seconds of a step without drafts of so many generations."""
        live = self._curve
        curve = live.curve if isinstance(live, LiveCurve) else live
        return curve.cost(lanes) * curve.seconds_per_step

    def _propose(self) -> None:
        """Let every generation query its layers and propose a draft.

        The newest tokens of the others are known to be in the batch; their drafts are allocated afterwards.
        """
        base = sum(r.base for r in self._writing)
        room = self._target.max_width - len(self._writing) + 1
        for running in tuple(self._writing):
            try:
                proposal = running.generation.on(Next(base - running.base, room))
            except Exception as err:  # of this request only
                self._fail(running, err)
            else:
                running.proposal = proposal if isinstance(proposal, Propose) else Propose()

    def _allocate(self) -> None:
        """Allocate the batch to the proposals and grant the shares."""
        base = sum(r.base for r in self._writing)
        curve, plain = self._costs(base)
        room = 0 if plain else max(0, self._target.max_width - base)
        lengths: list[int] = []
        for running in self._writing:  # proposals of first-match are not weighed by gain
            length = min(len(running.proposal.gains), room) if running.proposal.forced else 0
            lengths.append(length)
            room -= length
        weighed = [() if r.proposal.forced else r.proposal.gains for r in self._writing]
        shares = allocate_budget(weighed, curve, self._rate.value, base + sum(lengths), room)
        lengths = [a + b for a, b in zip(lengths, shares.lengths, strict=True)]
        padding = self._padding(lengths, shares.padding)
        total = base + sum(lengths) + sum(padding)
        for running, length, filler in zip(tuple(self._writing), lengths, padding, strict=True):
            running.other_tokens = total - running.base - length - filler
            verify = running.generation.on(BudgetGrant(length, filler, running.other_tokens))
            running.verify = verify if isinstance(verify, Verify) else Verify()

    def _costs(self, base: int) -> tuple[CostCurve, bool]:
        """Return the curve of this step, and whether a step without drafts is due.

        Every generation has decided alike for its queries.
        """
        live = self._curve
        if not isinstance(live, LiveCurve):
            return live, False
        if self._config.policy is not Policy.EXPECTED_GAIN:
            return live.curve, False
        return live.trial(base) or live.curve, live.plain_due

    def _padding(self, lengths: Sequence[int], padding: int) -> list[int]:
        """Assign the filler tokens to the generation with the most room in its context."""
        places = [0] * len(lengths)
        if padding:
            rooms = [r.generation.driver.room - n for r, n in zip(self._writing, lengths, strict=True)]
            widest = max(range(len(rooms)), key=rooms.__getitem__)
            places[widest] = padding if padding < rooms[widest] else 0
        return places

    def _process(self, running: Running, found: StepResult | Exception, seconds: float) -> None:
        """Process a generation's part of the batch."""
        if isinstance(found, Exception):
            self._fail(running, found)
            return
        outcome: Outcome | None = None
        try:
            generation = running.generation
            record = generation.record_step(running.verify, found, seconds, other_tokens=running.other_tokens)
            if generation.request.on_step is not None:
                generation.request.on_step(record)
            if isinstance(generation.advance(record, found), Finish):
                outcome = generation.finish()
        except Exception as err:  # of this request only
            outcome = Failure(err)
        if outcome is not None:
            self._end(running, outcome)

"""Several generations at once on one target: agents of a pipeline, in batches that they share.

    waiting requests ──> a free lane ──> its prompt, a batch a step ──> steps with the others ──> its result
                                                                            │
      each step   every generation asks its layers and proposes a draft     │  Next -> .. -> Propose
                  the batch's room goes to the tokens that gain most         │  Grant -> Verify
                  one batch; each takes what is its own                      │  Verified -> Wait or Finish

Every generation is the state machine of :mod:`suffixsvc_driver.loop` and ends on its own. Prompts are no
steps: between two steps at most one batch of one prompt is computed, so that whoever writes already waits no
longer than that for whoever comes; prompts are filled in the order in which they came.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from suffixsvc.errors import InvalidInputError, ModelError
from suffixsvc.types import TokenIds
from suffixsvc_driver.config import DriverConfig, Policy
from suffixsvc_driver.content import ContentType
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.events import Finish, Grant, Next, Propose, Verify
from suffixsvc_driver.generation import Generation, Result, StepRecord, curve_for
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.live_curve import LiveCurve
from suffixsvc_driver.policy import RunningRate
from suffixsvc_driver.sampling import GREEDY, Sampling
from suffixsvc_driver.sharing import share_out
from suffixsvc_driver.targets import LaneStep, ParallelTarget, Prefilled, StopRule, Verification
from suffixsvc_driver.trust import Trust

__all__ = ["Began", "Failure", "Filled", "Operation", "Request", "Run", "Stepped", "generate_many"]


@dataclass(frozen=True, slots=True)
class Request:
    """One generation. See :func:`suffixsvc_driver.loop.generate` for what the values mean.

    Attributes:
        layers: its own, not shared with another request that may run beside it.
        trust: None: that of the whole run.
    """

    prompt_ids: TokenIds
    layers: Sequence[Layer] = ()
    max_tokens: int = 256
    sampling: Sampling = GREEDY
    stop: StopRule | None = None
    content: Callable[[Sequence[int]], ContentType] | None = None
    trust: Trust | None = None
    on_step: Callable[[StepRecord], None] | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that came to nothing: a prompt that cannot be, a callback that raised, a batch that
    failed, an element that is not a :class:`Request`, an iterator of requests that raised."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Began:
    """The prompt of request number ``request`` went to a lane."""

    lane: int
    request: int
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Filled:
    """A batch of a lane's prompt was computed."""

    lane: int


@dataclass(frozen=True, slots=True)
class Stepped:
    """One batch of all lanes that wrote: (lane, drafted, parents) of each, and what it emitted; None where
    its tokens could not be chosen."""

    steps: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]
    emitted: tuple[tuple[int, ...] | None, ...]


#: what the target did, in order: the same from an empty memory on gives the same bits
Operation = Began | Filled | Stepped


@dataclass(frozen=True, slots=True)
class Run:
    """What came of many requests.

    Attributes:
        outcomes: of each request, in their order; the last one is a :class:`Failure` where the iterator of
            the requests raised. A result's ``decode_seconds`` hold the prompts that were filled between its
            steps, a step's ``target_seconds`` are those of the whole batch.
        operations: all that the target did.
        seconds: from the first prompt to the last token.
    """

    outcomes: tuple[Result | Failure, ...]
    operations: tuple[Operation, ...] = ()
    seconds: float = 0.0

    @property
    def results(self) -> list[Result]:
        """Those that came to something."""
        return [outcome for outcome in self.outcomes if isinstance(outcome, Result)]

    @property
    def batches(self) -> int:
        """Steps of the target, prompts left out."""
        return sum(isinstance(operation, Stepped) for operation in self.operations)

    @property
    def tokens(self) -> int:
        """Written by all together."""
        return sum(len(result.token_ids) for result in self.results)


def generate_many(
    target: ParallelTarget,
    requests: Iterable[Request],
    config: DriverConfig | None = None,
    *,
    curve: CostCurve | LiveCurve | None = None,
    trust: Trust | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Run:
    """Answer every request, as many at once as the target has lanes.

    Each answer is the target's own text, as :func:`suffixsvc_driver.loop.generate` gives it alone, but for
    near-ties that another place in the KV memory rounds differently.

    Args:
        requests: taken one by one as lanes become free, so a generator may make the next ones of what came.
            An exception of the iterator ends them: it is the last outcome, a :class:`Failure`.
        config: of all of them.
        curve: what the target's steps cost, by the tokens of the whole batch; without one a guess that
            learns from them.
        trust: what is known about layers by name; shared, and learned on.

    Raises:
        InvalidConfigError: a curve that is wider than the target's batches. Whatever goes wrong with a
            request is its :class:`Failure`.
    """
    return _Loop(target, config or DriverConfig(), curve_for(target, curve), trust or Trust(), clock).run(
        iter(requests)
    )


@dataclass(slots=True)
class _Running:
    """A request on a lane."""

    index: int
    lane: int
    request: Request
    generation: Generation
    prompt: tuple[int, ...]
    reused: int | None = None  # once the prompt is on the lane
    prefill_seconds: float = 0.0
    proposal: Propose = field(default_factory=Propose)
    verify: Verify = field(default_factory=Verify)
    beside: int = 0

    @property
    def base(self) -> int:
        """Tokens that it has in the next batch in any case."""
        return 1 + self.generation.replay


def _check_request(index: int, request: object) -> None:
    if not isinstance(request, Request):
        raise InvalidInputError(f"requests[{index}] must be a Request", got=type(request).__name__)


class _Loop:
    """One call of :func:`generate_many`."""

    def __init__(
        self,
        target: ParallelTarget,
        config: DriverConfig,
        curve: CostCurve | LiveCurve,
        trust: Trust,
        clock: Callable[[], float],
    ) -> None:
        self._target, self._config, self._trust, self._clock = target, config, trust, clock
        self._curve = curve
        self._rate = RunningRate(config.rate_decay)
        self._free = list(range(target.lanes))
        self._filling: list[_Running] = []
        self._writing: list[_Running] = []
        self._outcomes: dict[int, Result | Failure] = {}
        self._operations: list[Operation] = []

    def run(self, requests: Iterator[Request]) -> Run:
        began = self._clock()
        more = True
        while more or self._filling or self._writing:
            while more and self._free:
                more = self._admit(requests)
            if self._filling:
                self._fill(self._filling[0])
            if self._writing:
                self._step()
        outcomes = tuple(self._outcomes[i] for i in range(len(self._outcomes)))
        return Run(outcomes, tuple(self._operations), self._clock() - began)

    # -- beginning and ending

    def _admit(self, requests: Iterator[Request]) -> bool:
        """Put the next request on a free lane; False when there is none."""
        index = len(self._outcomes) + len(self._filling) + len(self._writing)
        target = self._target
        try:
            request = next(requests)
        except StopIteration:
            return False
        except Exception as err:  # the requests before it are still answered
            self._outcomes[index] = Failure(err)
            return False
        try:
            _check_request(index, request)
            lane = target.lane_for(request.prompt_ids, self._free)
            generation = Generation(
                self._config,
                self._curve,
                request.layers,
                request.max_tokens,
                self._clock,
                target.chooser(request.sampling, request.prompt_ids),
                target.vocab_size,
                trust=request.trust or self._trust,
                rate=self._rate,
                content=request.content,
            )
        except Exception as err:  # of this request only
            self._outcomes[index] = Failure(err)
            return True
        prompt = tuple(int(t) for t in request.prompt_ids)
        self._free.remove(lane)
        self._filling.append(_Running(index, lane, request, generation, prompt))
        return True

    def _fill(self, running: _Running) -> None:
        """A batch of its prompt; it writes from then on where that was all."""
        before = self._clock()
        lane = running.lane
        try:
            if running.reused is None:
                # not before it is its turn: what the prompts before it have in common with it is there then
                running.reused = self._target.begin(lane, running.prompt)
                self._operations.append(Began(lane, running.index, running.prompt))
            self._operations.append(Filled(lane))
            done = self._target.prefill(lane)
            running.prefill_seconds += self._clock() - before
            if not done:
                return
            computed = len(running.prompt) - 1 - running.reused
            prefilled = Prefilled(running.reused, computed)
            running.generation.begin(
                self._target, running.prompt, prefilled, running.prefill_seconds, paced=True
            )
        except Exception as err:  # of this request only
            self._filling.remove(running)
            self._fail(running, err)
            return
        self._filling.remove(running)
        self._writing.append(running)

    def _fail(self, running: _Running, error: Exception) -> None:
        self._outcomes[running.index] = Failure(error)
        self._release(running)

    def _release(self, running: _Running) -> None:
        if running in self._writing:
            self._writing.remove(running)
        self._free.append(running.lane)
        self._free.sort()

    # -- a step of all that write

    def _step(self) -> None:
        self._propose()
        if not self._writing:
            return
        self._share()
        steps = [
            LaneStep(
                r.lane,
                r.verify.token_ids,
                r.generation.chooser,
                r.generation.left,
                r.request.stop,
                r.verify.parents,
            )
            for r in self._writing
        ]
        before = self._clock()
        try:
            seen = self._target.verify_many(steps)
        except ModelError as err:
            for running in tuple(self._writing):
                self._fail(running, err)
            return
        seconds = self._clock() - before
        emitted = tuple(None if isinstance(s, Exception) else s.emitted for s in seen)
        self._operations.append(Stepped(tuple((s.lane, s.drafted, s.parents) for s in steps), emitted))
        base = sum(r.base for r in self._writing)
        width = base + sum(len(s.drafted) for s in steps)
        for running, found in zip(tuple(self._writing), seen, strict=True):
            self._take(running, found, seconds)
        if isinstance(self._curve, LiveCurve):  # once, whatever became of the generations that shared it
            self._curve.observe(width, seconds, base)

    def _propose(self) -> None:
        """Everybody asks their layers, and says what they would send. The others' newest tokens are in the
        batch in any case; what they draft is not known yet, and weighed afterwards."""
        base = sum(r.base for r in self._writing)
        room = self._target.max_width - len(self._writing) + 1
        for running in tuple(self._writing):
            try:
                proposal = running.generation.on(Next(base - running.base, room))
            except Exception as err:  # of this request only
                self._fail(running, err)
            else:
                running.proposal = proposal if isinstance(proposal, Propose) else Propose()

    def _share(self) -> None:
        """Decide what everybody may send."""
        base = sum(r.base for r in self._writing)
        curve, plain = self._prices(base)
        room = 0 if plain else self._target.max_width - len(self._writing)
        lengths: list[int] = []
        for running in self._writing:  # first-match does not weigh
            length = min(len(running.proposal.gains), room) if running.proposal.forced else 0
            lengths.append(length)
            room -= length
        weighed = [() if r.proposal.forced else r.proposal.gains for r in self._writing]
        shares = share_out(weighed, curve, self._rate.value, base + sum(lengths), room)
        lengths = [a + b for a, b in zip(lengths, shares.lengths, strict=True)]
        padding = self._padding(lengths, shares.padding)
        total = base + sum(lengths) + sum(padding)
        for running, length, filler in zip(tuple(self._writing), lengths, padding, strict=True):
            running.beside = total - running.base - length - filler
            verify = running.generation.on(Grant(length, filler, running.beside))
            running.verify = verify if isinstance(verify, Verify) else Verify()

    def _prices(self, base: int) -> tuple[CostCurve, bool]:
        """By which to share, and whether nothing is to be sent, so that what a batch costs without drafts
        is seen: as every generation decided for its questions."""
        live = self._curve
        if not isinstance(live, LiveCurve):
            return live, False
        if self._config.policy is not Policy.EXPECTED_GAIN:
            return live.curve, False
        return live.trial(base) or live.curve, live.plain_due

    def _padding(self, lengths: Sequence[int], padding: int) -> list[int]:
        """Tokens that only fill the batch go where there is most room in the context."""
        places = [0] * len(lengths)
        if padding:
            rooms = [r.generation.room - n for r, n in zip(self._writing, lengths, strict=True)]
            widest = max(range(len(rooms)), key=rooms.__getitem__)
            places[widest] = padding if padding < rooms[widest] else 0
        return places

    def _take(self, running: _Running, found: Verification | Exception, seconds: float) -> None:
        """What a generation's part of the batch gave."""
        if isinstance(found, Exception):
            self._fail(running, found)
            return
        try:
            generation = running.generation
            record = generation.write_down(running.verify, found, seconds, beside=running.beside)
            if running.request.on_step is not None:
                running.request.on_step(record)
            decision = generation.go_on(record, found)
            if isinstance(decision, Finish):
                self._outcomes[running.index] = generation.finish()
                self._release(running)
        except Exception as err:  # of this request only
            self._fail(running, err)

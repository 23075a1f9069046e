r"""State machine of one generation: events in, decisions out; no clock, no transport, no model.

    IDLE --Begin--> QUERYING --LayerAnswer/LayerFailed--> QUERYING ... --> VERIFYING --StepResult--> QUERYING
                                                                                       \--> DONE

    batched:  IDLE --Begin--> WAITING --Next--> QUERYING ... --> PROPOSING --BudgetGrant--> VERIFYING ...

In every step the layers are queried in order (:mod:`suffixsvc_driver.speculation.layer_queries`), and the
best draft goes to the target: a prefix of one layer's chain or, if the target accepts trees, a tree merged
from all answers. See :mod:`suffixsvc_driver.policy.expected_gain` for the expected-gain rule, and
:mod:`suffixsvc_driver.policy.calibration` for the calibration of the layers' probabilities.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

from suffixsvc.errors import InvalidConfigError, InvalidInputError, LimitExceededError
from suffixsvc.types import DraftSource, Verified
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.live_curve import LiveCurve
from suffixsvc_driver.drafts.events import (
    Begin,
    BudgetGrant,
    Decision,
    Event,
    Finish,
    FinishReason,
    LayerAnswer,
    LayerFailed,
    Next,
    StepResult,
    Verify,
    Wait,
)
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.policy.controllers import KController
from suffixsvc_driver.policy.expected_gain import RunningRate, StepParams
from suffixsvc_driver.settings.driver_config import DriverConfig, LayerSpec, Policy
from suffixsvc_driver.speculation.accounting import Stats
from suffixsvc_driver.speculation.draft_assembly import StepDraft, TreeDraft
from suffixsvc_driver.speculation.layer_queries import LayerQueries

#: by number; an enum's lookup takes five calls
_SOURCES: Final = {int(source): source for source in DraftSource}
_PLAIN: Final = Verify()
_NOT_BEGUN: Final = Begin(prompt_length=1, max_tokens=1, context_size=1, vocab_size=1)


class _Phase(enum.StrEnum):
    IDLE = "idle"
    WAITING = "waiting"
    QUERYING = "querying"
    PROPOSING = "proposing"
    VERIFYING = "verifying"
    DONE = "done"


class GenerationStateMachine:
    """Decisions of one generation. Deterministic: equal events give equal decisions.

    Args:
        config: see :class:`DriverConfig`.
        curve: cost of the target's steps; a :class:`LiveCurve` learns from them.
        layers: in query order, cheapest first; under expected gain prompt lookup is moved after the suffix
            layers, which contain its text.
        calibrator: learned statistics to continue; None for new ones.
        rate: tokens per unit of cost, shared by generations that run in the same batches.

    Raises:
        InvalidConfigError: two layers have the same name.
    """

    def __init__(
        self,
        config: DriverConfig,
        curve: CostCurve | LiveCurve,
        layers: Sequence[LayerSpec] = (),
        calibrator: Calibrator | None = None,
        rate: RunningRate | None = None,
    ) -> None:
        names = [spec.name for spec in layers]
        if len(set(names)) != len(names):
            raise InvalidConfigError("names of layers must be unique", got=names)
        self.config = config
        self._live = curve if isinstance(curve, LiveCurve) else None
        self._fixed = curve.curve if isinstance(curve, LiveCurve) else curve
        self.calibrator = calibrator if calibrator is not None else Calibrator()
        self.stats = Stats()
        for name in names:
            self.stats.layer(name)
        self._queries = LayerQueries(config, layers, self.calibrator, self.stats)
        #: lambda of the expected-gain rule
        self.rate = rate if rate is not None else RunningRate(config.rate_decay)
        self._controller = KController(config)
        self._phase = _Phase.IDLE
        self._begin = _NOT_BEGUN
        self._written = 0
        self._verify = _PLAIN
        self._replay = 0
        self._other_tokens = 0  # tokens of other generations in the batch
        self._base = 1  # tokens of the step without drafts, as far as known at its start
        self._max_width = 0
        self._trees = False
        self._proposed = 0
        #: result of the last step; None before the first
        self.verified: Verified | None = None

    @property
    def curve(self) -> CostCurve:
        """Current cost of the target's steps."""
        return self._live.curve if self._live is not None else self._fixed

    @property
    def room(self) -> int:
        """Widest possible next batch of this generation, tokens, replayed ones excluded.

        They count as verified ones do: first-match would otherwise replay more after each partly accepted
        draft, until no batch holds it. A step without drafts ends the replay.

        A tree needs as much room as a chain of the same size: each token is a cell of the KV cache.
        """
        return min(max(1, self._max_width - self._replay), self._context_left())

    def on(self, event: Event) -> Decision:
        """Process an event and return the next decision.

        Raises:
            InvalidInputError: the event does not answer the last decision; the state is unchanged.
        """
        match event:  # the most frequent ones first
            case LayerAnswer() | LayerFailed():
                pending = self._queries.pending
                self._expect(pending is not None and event.layer == pending.layer, event)
                self._queries.on_answer(event, self.curve)
                return self._query_next()
            case StepResult():
                self._expect(self._phase is _Phase.VERIFYING, event)
                return self._on_verified(event)
            case Begin():
                self._expect(self._phase is _Phase.IDLE, event)
                return self._on_begin(event)
            case Next():
                self._expect(
                    self._phase is _Phase.WAITING and event.other_tokens >= 0 and event.room >= 1, event
                )
                self._other_tokens, self._max_width = event.other_tokens, event.room
                return self._start_step()
            case BudgetGrant():
                self._expect(self._phase is _Phase.PROPOSING, event)
                return self._on_grant(event)
        raise InvalidInputError("event must be an event of the driver", got=type(event).__name__)

    def _expect(self, fits: bool, event: Event) -> None:
        if not fits:
            pending = self._queries.pending
            raise InvalidInputError(
                "event must answer the last decision",
                expected=f"{self._phase} {pending.layer if pending else ''}".strip(),
                got=type(event).__name__,
            )

    # -- start of a generation and of a step

    def _on_begin(self, event: Begin) -> Decision:
        if event.prompt_length < 1 or event.max_tokens < 1 or event.vocab_size < 1:
            raise InvalidInputError(
                "prompt_length, max_tokens and vocab_size must be >= 1",
                got=(event.prompt_length, event.max_tokens, event.vocab_size),
            )
        if event.prompt_length > event.context_size:
            raise LimitExceededError(
                "the prompt must fit into the target's context",
                expected=f"at most {event.context_size} tokens",
                got=event.prompt_length,
            )
        self._begin = event
        self._controller.set_content(event.content)
        self._queries.begin(event)
        by_gain = self.config.policy is Policy.EXPECTED_GAIN
        # a state that cannot be truncated holds a single path
        self._trees = event.max_branches > 1 and by_gain and not event.replays
        self._max_width = event.max_width
        return self._end_step()

    def _end_step(self) -> Decision:
        if self._begin.batched:
            self._phase = _Phase.WAITING
            return Wait()
        return self._start_step()

    def _start_step(self) -> Decision:
        self._phase = _Phase.QUERYING
        self._base = 1 + self._replay + self._other_tokens if self._begin.batched else 1
        # All generations of a shared batch have the same live curve, so they and the loop decide alike.
        live = self._live if self.config.policy is Policy.EXPECTED_GAIN else None
        trial = None
        if live is not None and (self._begin.batched or not self._replay):
            trial = live.trial(self._base)
        step = StepParams(
            trial or self.curve,
            self.rate.value,
            # drafted tokens that can still be of use: the target adds a bonus token
            min(self.config.max_draft_tokens, self._begin.max_tokens - self._written - 1),
            self.room,
            self._replay + self._other_tokens,
            self._begin.replays,
        )
        self._queries.start_step(
            TreeDraft(step, self._begin.max_branches) if self._trees else StepDraft(step)
        )
        if live is not None and live.plain_due:
            self._queries.skip_all("a step without drafts is due, to measure its cost")
            return self._decide()
        return self._query_next()

    def _context_left(self) -> int:
        """Tokens that still fit, the newest one included: it is not in the KV cache yet."""
        return self._begin.context_size - self._begin.prompt_length - self._written + 1

    def _query_next(self) -> Decision:
        query = self._queries.next_query(
            self.verified, self._controller.value, self._begin.max_tokens - self._written
        )
        return self._decide() if query is None else query

    # -- verification

    def _decide(self) -> Decision:
        if self._begin.batched:
            self._phase = _Phase.PROPOSING
            proposal = self._queries.draft.propose()
            self._proposed = len(proposal.gains)
            return proposal
        return self._send(self._queries.draft.decide())

    def _on_grant(self, event: BudgetGrant) -> Decision:
        counts = (event.length, event.padding, event.other_tokens)
        fits = min(counts) >= 0 and event.length <= self._proposed
        self._expect(fits and 1 + event.length + event.padding <= self.room, event)
        self._other_tokens = event.other_tokens
        return self._send(self._queries.draft.cut(event.length, event.padding))

    def _send(self, verify: Verify) -> Verify:
        self._phase = _Phase.VERIFYING
        self._verify = verify
        return verify

    def _on_verified(self, event: StepResult) -> Decision:
        sent = self._verify
        emitted = event.emitted
        path = sent.path(emitted, event.accepted)
        fits = (
            0 < len(emitted) <= event.accepted + 1
            and 0 <= event.accepted <= len(sent.token_ids)
            and event.width == len(sent.token_ids) + 1
            and len(path) == min(len(emitted), event.accepted)
        )
        self._expect(fits, event)
        self._queries.label(emitted)
        drafted = sent.drafted
        origins = sent.origins(path, len(emitted))
        accepted = self.stats.count_step(sent, event.accepted, path, origins)
        width = event.width + self._replay
        cost = self._cost_of(width) + self._queries.cost
        self.stats.cost += cost
        self.stats.replayed += self._replay
        self.rate.add(len(emitted), cost)
        # the loop observes a shared batch once for all generations
        if self._live is not None and not self._begin.batched:
            self._live.observe(width, event.seconds, self._base)
        if drafted and self.config.policy is Policy.FIRST_MATCH:
            self._controller.add(drafted, accepted)
        if event.content is not None:
            self._controller.set_content(event.content)
        self._replay = event.replay
        source = _SOURCES[sent.sources[0]] if drafted else DraftSource.NONE
        self.verified = Verified(event.width, accepted, source)
        self._written += len(emitted)
        self._queries.wrote(len(emitted))
        reason = self._finish_reason(emitted[-1], event.stopped)
        if reason is not None:
            self._phase = _Phase.DONE
            return Finish(reason)
        return self._end_step()

    def _cost_of(self, width: int) -> float:
        """Cost in plain steps; of a shared batch, in proportion to the tokens of this generation."""
        if not self._other_tokens:
            return self.curve.cost(width)
        return self.curve.cost(width + self._other_tokens) * width / (width + self._other_tokens)

    def _finish_reason(self, last: int, stopped: bool) -> FinishReason | None:
        if stopped or last in self._begin.eog_ids:
            return FinishReason.STOP
        if self._written >= self._begin.max_tokens:
            return FinishReason.LENGTH
        if self._context_left() < 1:
            return FinishReason.CONTEXT
        return None

"""State of a layer in one generation: cost of its queries, misses, and its answer in the current step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from suffixsvc_driver.drafts.chain import CleanDraft, common_prefix
from suffixsvc_driver.policy.layer_value import HitRun, LayerValue
from suffixsvc_driver.settings.driver_config import LayerKind, LayerSpec

if TYPE_CHECKING:
    from suffixsvc.core import AcceptanceTable

#: seconds to read a token relative to those to draft one, if unknown. A draft model that is not queried has
#: to read the emitted tokens in its next query: seconds, after a long pause
_READING_SHARE: Final = 0.2
#: weight of a new measurement of the seconds of a draft model's token
_SECONDS_STEP: Final = 0.2
#: rate at which these seconds return to their initial value while the model is not queried, per step
_SECONDS_DECAY: Final = 0.02
#: consecutive steps without a gain that do not end a run of hits
_RUN_GAP: Final = 2
_NO_ANSWER: Final = CleanDraft()


class LayerState:
    """Layer whose queries have one cost and are valued by the gain that they add to the draft.

    Attributes:
        table: acceptance of its tokens.
        misses: steps since a query last added to the draft.
        answer: draft of this step.
        after: tokens that ``answer`` continues.
        suggested: tokens that were suggested to follow ``after``.
    """

    def __init__(self, spec: LayerSpec, value: LayerValue, table: AcceptanceTable) -> None:
        self.spec = spec
        self.value = value
        self.table = table
        self.misses = 0
        self._run: HitRun | None = None  # the current run, if a query found it
        self.answer = _NO_ANSWER
        self.after: tuple[int, ...] = ()
        self.suggested: tuple[int, ...] = ()

    def begin_step(self) -> None:
        """Clear the answer of the last step."""
        self.answer, self.after, self.suggested = _NO_ANSWER, (), ()

    def label(self, emitted: tuple[int, ...]) -> None:
        """Label the answer, sent or not, by the emitted tokens.

        Of a tree, every token whose parent was emitted is labelled; at most one of several siblings is a hit.
        """
        answer, start = self.answer, len(self.after)
        if not answer.token_ids or emitted[:start] != self.after:
            return  # the tokens that it continues were not emitted
        if answer.parents:
            self._label_tree(emitted)
            return
        self.table.label(answer.token_ids, answer.raw_probs, emitted[start:], start)

    def _label_tree(self, emitted: tuple[int, ...]) -> None:
        answer, start = self.answer, len(self.after)
        children: dict[int, list[int]] = {}
        for i, parent in enumerate(answer.parents):
            children.setdefault(parent, []).append(i)
        at = -1
        for depth, truth in enumerate(emitted[start:], start):
            right = -1
            for i in children.get(at, ()):
                hit = answer.token_ids[i] == truth
                self.table.learn(answer.raw_probs[i], depth, hit)
                right = i if hit else right
            if right < 0:
                break
            at = right

    def wrote(self, tokens: int) -> None:
        """Record that the text has grown by ``tokens`` tokens."""

    def measure(self, drafted: int, seconds: float) -> None:
        """Record the seconds of a query that drafted ``drafted`` tokens; 0 seconds is no measurement."""
        self.value.measure(seconds)

    def learn(self, added: float, cost: float, every_steps: int, seconds_per_step: float) -> None:
        """Record the gain of a query.

        Args:
            added: gain over the draft before, tokens.
            cost: of the query, tokens.
            every_steps: see :meth:`LayerValue.exploration_interval`.
            seconds_per_step: see :meth:`LayerValue.exploration_interval`.
        """
        mean_gain = self.value.learn(self.misses, added)
        if self._run is not None:
            self._run.credit(added, cost)
        elif added > 0.0 and self.misses > _RUN_GAP:
            # exploration would take half of these steps on average, but not every query finds an existing run
            self._run = HitRun(mean_gain, self.value.exploration_interval(every_steps, seconds_per_step))
        if added > 0.0:
            self.misses = 0
        else:
            self._miss()

    def skip(self) -> None:
        """Record that the layer is not queried in this step."""
        self._miss()
        self.value.record_skip()

    def _miss(self) -> None:
        self.misses += 1
        if self.misses > _RUN_GAP:
            self._run = None


class DraftModelState(LayerState):
    """Layer whose cost is per token, read or drafted, and whose value follows from its acceptance alone.

    Attributes:
        token_seconds: mean seconds to draft a token.
    """

    def __init__(self, spec: LayerSpec, value: LayerValue, table: AcceptanceTable) -> None:
        super().__init__(spec, value, table)
        self.token_seconds = spec.seconds_per_token
        known = spec.seconds_per_read_token > 0.0 < spec.seconds_per_token
        self._reading = spec.seconds_per_read_token / spec.seconds_per_token if known else _READING_SHARE
        self._unread = 0  # emitted tokens that were not sent to the layer yet

    @property
    def catch_up_seconds(self) -> float:
        """Seconds to read all unread tokens, which the next query takes before it drafts."""
        return self.read_seconds * self._unread

    @property
    def read_seconds(self) -> float:
        """Seconds to read a token."""
        return self._reading * self.token_seconds

    def wrote(self, tokens: int) -> None:
        """Record that the text has grown by ``tokens`` tokens."""
        self._unread += tokens

    def measure(self, drafted: int, seconds: float) -> None:
        """Update the seconds per token by those of a query; 0 seconds is no measurement."""
        if seconds > 0.0:
            passes = max(1, drafted - common_prefix(self.answer.token_ids, self.suggested))
            each = seconds / (passes + self._reading * (self._unread + len(self.suggested)))
            # an empty answer counts only if it was slow: reading alone is not drafting
            if drafted or each > self.token_seconds:
                self.token_seconds += _SECONDS_STEP * (each - self.token_seconds)
        self._unread = 0

    def learn(self, added: float, cost: float, every_steps: int, seconds_per_step: float) -> None:
        """Do nothing: the value follows from :meth:`AcceptanceTable.acceptance`."""

    def skip(self) -> None:
        """Record that the layer is not queried in this step."""
        super().skip()
        self.token_seconds += _SECONDS_DECAY * (self.spec.seconds_per_token - self.token_seconds)


def layer_state(spec: LayerSpec, value: LayerValue, table: AcceptanceTable) -> LayerState:
    """Create the state of a layer by its kind."""
    return (DraftModelState if spec.kind is LayerKind.DRAFT_MODEL else LayerState)(spec, value, table)

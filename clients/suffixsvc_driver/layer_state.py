"""What the state machine knows of each layer: what its questions cost, and what it answered in this step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from suffixsvc_driver.asking import Asking, Run
from suffixsvc_driver.chain import CleanDraft, common_prefix
from suffixsvc_driver.config import LayerKind, LayerSpec
from suffixsvc_driver.trust import Trust

__all__ = ["DraftModelState", "LayerState", "layer_state"]

#: where nobody knows, a draft model reads a token in this share of the time it writes one in. What it has to
#: read grows while it is not asked, and is paid by the next question: seconds, after a long pause
_READING_SHARE: Final = 0.2
#: weight of the newest measurement of what a draft model's token costs
_COST_STEP: Final = 0.2
#: how fast the price of a draft model that is not asked falls back to its first guess, per step
_COST_FADE: Final = 0.02
#: a run of hits goes on over so many steps that add nothing
_RUN_GAP: Final = 2


class LayerState:
    """A layer whose questions have one price and are judged by what they add to the draft at hand."""

    def __init__(self, spec: LayerSpec, asking: Asking) -> None:
        self.spec = spec
        self.asking = asking
        #: steps since a question last added something to the draft at hand
        self.dry_steps = 0
        self._run: Run | None = None  # that goes on now, where a question found it
        #: the answer in this step, the draft it goes on behind, and what was suggested to follow that
        self.answer = CleanDraft()
        self.after: tuple[int, ...] = ()
        self.suggested: tuple[int, ...] = ()

    def begin_step(self) -> None:
        """Nothing was answered yet."""
        self.answer, self.after, self.suggested = CleanDraft(), (), ()

    def label(self, trust: Trust, emitted: tuple[int, ...]) -> None:
        """Learn from what the target wrote what the answer was worth, sent or not. Of a tree every token
        whose parents came: of siblings one is right at most."""
        answer, name, start = self.answer, self.spec.name, len(self.after)
        if not answer.token_ids or emitted[:start] != self.after:
            return  # what it went on behind did not come
        if answer.parents:
            self._label_tree(trust, emitted[start:])
            return
        for i, (token, truth) in enumerate(zip(answer.token_ids, emitted[start:], strict=False)):
            trust.learn(name, answer.claims[i], start + i, token == truth)
            if token != truth:
                break

    def _label_tree(self, trust: Trust, emitted: Sequence[int]) -> None:
        answer, name, start = self.answer, self.spec.name, len(self.after)
        children: dict[int, list[int]] = {}
        for i, parent in enumerate(answer.parents):
            children.setdefault(parent, []).append(i)
        at = -1
        for depth, truth in enumerate(emitted, start):
            right = -1
            for i in children.get(at, ()):
                hit = answer.token_ids[i] == truth
                trust.learn(name, answer.claims[i], depth, hit)
                right = i if hit else right
            if right < 0:
                break
            at = right

    def wrote(self, tokens: int) -> None:
        """The text has grown by so many tokens."""

    def measure(self, drafted: int, seconds: float) -> None:
        """A question was answered; 0 seconds is no measurement."""
        self.asking.measure(seconds)

    def learn(self, added: float, price: float, every_steps: int, seconds_per_step: float) -> None:
        """A question of this price, in tokens, added so many to the draft at hand.

        Args:
            every_steps, seconds_per_step: as in :meth:`Asking.trial_after`.
        """
        situation = self.asking.learn(self.dry_steps, added)
        if self._run is not None:
            self._run.go_on(added, price)
        elif added > 0.0 and self.dry_steps > _RUN_GAP:
            # a trial comes in half of these steps on average, and not every one finds a run that is there
            self._run = Run(situation, self.asking.trial_after(every_steps, seconds_per_step))
        if added > 0.0:
            self.dry_steps = 0
        else:
            self._grow_dry()

    def pass_over(self) -> None:
        """Not asked in this step."""
        self._grow_dry()
        self.asking.pass_over()

    def _grow_dry(self) -> None:
        self.dry_steps += 1
        if self.dry_steps > _RUN_GAP:
            self._run = None


class DraftModelState(LayerState):
    """A layer that is paid by the token, read or written, and judged by its acceptance alone."""

    def __init__(self, spec: LayerSpec, asking: Asking) -> None:
        super().__init__(spec, asking)
        self.token_seconds = spec.seconds_per_token
        known = spec.seconds_per_read_token > 0.0 < spec.seconds_per_token
        self._reading = spec.seconds_per_read_token / spec.seconds_per_token if known else _READING_SHARE
        self._behind = 0  # tokens of the text that it was not told yet

    @property
    def reading_seconds(self) -> float:
        """What the next question costs before the first token is drafted."""
        return self.read_seconds * self._behind

    @property
    def read_seconds(self) -> float:
        """Of a token it has not seen."""
        return self._reading * self.token_seconds

    def wrote(self, tokens: int) -> None:
        self._behind += tokens

    def measure(self, drafted: int, seconds: float) -> None:
        if seconds > 0.0:
            passes = max(1, drafted - common_prefix(self.answer.token_ids, self.suggested))
            each = seconds / (passes + self._reading * (self._behind + len(self.suggested)))
            # an empty answer is a price only if it was waited for: catching up is not drafting
            if drafted or each > self.token_seconds:
                self.token_seconds += _COST_STEP * (each - self.token_seconds)
        self._behind = 0

    def learn(self, added: float, price: float, every_steps: int, seconds_per_step: float) -> None:
        """Nothing: see :meth:`Trust.acceptance`."""

    def pass_over(self) -> None:
        super().pass_over()
        self.token_seconds += _COST_FADE * (self.spec.seconds_per_token - self.token_seconds)


def layer_state(spec: LayerSpec, asking: Asking) -> LayerState:
    """The state of a layer of this kind."""
    return (DraftModelState if spec.kind is LayerKind.DRAFT_MODEL else LayerState)(spec, asking)

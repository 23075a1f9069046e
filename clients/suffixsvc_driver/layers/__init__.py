"""Drafting layers: sources of drafts, which the loop queries in the order of their cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, runtime_checkable

import numpy as np

from suffixsvc.types import Draft, Verified, VerifyCost
from suffixsvc_driver.drafts.events import QueryLayer
from suffixsvc_driver.settings.driver_config import LayerSpec

#: Fraction of a drafted token's cost by which a layer cuts its own drafts. The driver cuts by the whole cost
#: and by calibrated probabilities: where a prompt is copied, tokens of raw probability 0.93 are accepted in
#: 99 of 100 cases. A token that the layer cuts itself is never calibrated.
#: (At the costs of two cores, 0.35 gained 4 % over 1 on recorded calls of agents and on edits; 0.25 and 0.5
#: gained as much within 0.6 %, and 0.25 lost 1 % at a cost of 0.2 per token.)
_COST_FRACTION: Final = 0.35


class Layer(Protocol):
    """A source of drafts for one generation. Any error that it raises counts as an empty draft."""

    @property
    def spec(self) -> LayerSpec:
        """Name, kind, limits and costs of the layer."""

    def begin(self, prompt_ids: Sequence[int], cost: VerifyCost) -> None:
        """Start a generation after this prompt.

        Args:
            cost: the target's cost curve, with padding; a float under a policy that does not use the curve.
        """

    def draft(self, new_token_ids: Sequence[int], query: QueryLayer) -> Draft:
        """Draft at most ``query.budget`` tokens; with 0, only send the new tokens.

        ``query.after``, a chain drafted for this step, is given only if ``spec.can_continue`` is set. The
        draft follows the text and this chain, and its probabilities are conditional on the acceptance of the
        whole chain. The chain does not become part of the text: accepted tokens come back in
        ``new_token_ids``. ``query.suggested`` does not change the draft, but it may be faster where the two
        agree (``spec.max_suggested``).

        Args:
            new_token_ids: tokens emitted since the last call, possibly none. Tokens of a call that raised
                are not sent again: the layer itself must store what it could not pass on.
        """

    def end(self, new_token_ids: Sequence[int], verified: Verified | None) -> None:
        """End the generation; these tokens were not sent yet."""


@runtime_checkable
class CostAwareLayer(Layer, Protocol):
    """A layer whose drafts depend on the cost of the target's steps."""

    def set_cost(self, cost: VerifyCost) -> None:
        """Replace the cost that was passed to :meth:`Layer.begin`."""


def drafting_cost(cost: VerifyCost) -> VerifyCost:
    """Return the cost by which a layer cuts its own drafts: a fraction of the target's curve. A float is the
    policy's own cost and stays unchanged."""
    if np.ndim(cost) == 0:
        return float(cost)  # type: ignore[arg-type]  # a number, as it has no dimension
    curve = 1.0 + _COST_FRACTION * (np.asarray(cost, np.float32) - 1.0)
    curve.setflags(write=False)  # it is passed with each query, and converted once
    return curve

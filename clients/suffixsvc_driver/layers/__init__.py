"""Drafting layers: what the loop asks, in the order of their price."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, runtime_checkable

import numpy as np

from suffixsvc.types import Draft, VerifyCost
from suffixsvc_driver.config import LayerSpec
from suffixsvc_driver.events import Feedback

__all__ = ["ContinuingLayer", "Layer", "PricedLayer", "drafting_price"]

#: The share of a drafted token's cost by which a layer cuts its own drafts. The driver cuts by the whole cost
#: and by probabilities that it has corrected by what came of them: where a prompt is copied, tokens of 0.93
#: are right in 99 of 100 cases. A token that the layer does not offer is not corrected, and teaches nothing.
#: (At the costs of two cores 0.35 gained 4 % over 1 on recorded calls of agents and on edits; 0.25 and 0.5
#: gained as much within 0.6 %, and 0.25 lost 1 % where a token costs 0.2.)
_SHARE_OF_PRICE: Final = 0.35


class Layer(Protocol):
    """A source of drafts for one generation. Whatever it raises counts as an empty draft."""

    @property
    def spec(self) -> LayerSpec: ...

    def begin(self, prompt_ids: Sequence[int], cost: VerifyCost) -> None:
        """A generation starts behind this prompt. ``cost``: the target's curve, padding taken into
        account; a float under a policy that does not look at the curve."""

    def draft(self, new_token_ids: Sequence[int], budget: int, verified: Feedback | None) -> Draft:
        """At most ``budget`` tokens that follow; 0 asks for nothing.

        Args:
            new_token_ids: written since this layer was last told, possibly none. A call that raised
                counts as told: the layer itself must remember what it could not pass on.
            verified: what the target really got in the last step; None before the first.
        """

    def end(self, new_token_ids: Sequence[int], verified: Feedback | None) -> None:
        """The generation is over; these tokens were not told yet."""


@runtime_checkable
class PricedLayer(Layer, Protocol):
    """A layer that goes by what the target's steps cost."""

    def reprice(self, cost: VerifyCost) -> None:
        """They cost this from now on, not what :meth:`Layer.begin` said."""


@runtime_checkable
class ContinuingLayer(Layer, Protocol):
    """A layer that can also go on behind tokens that another one drafted; ``spec.continues`` says so."""

    def draft(
        self,
        new_token_ids: Sequence[int],
        budget: int,
        verified: Feedback | None,
        *,
        after: Sequence[int] = (),
        suggested: Sequence[int] = (),
    ) -> Draft:
        """As :meth:`Layer.draft`.

        Args:
            after: a chain drafted for this step. The draft follows the text and this chain, and its
                probabilities hold given that all of the chain is accepted. It does not become part of the
                text: what the target accepts of it comes back in ``new_token_ids``, as always.
            suggested: what other layers believe to follow that. The draft is the layer's own, and the same
                without; it may come sooner where the two agree (``spec.checks``).
        """


def drafting_price(cost: VerifyCost) -> VerifyCost:
    """The cost by which a layer cuts its own drafts: a share of the target's curve. A float is the policy's
    own price and stays as it is."""
    if np.ndim(cost) == 0:
        return float(cost)  # type: ignore[arg-type]  # a number, as it has no dimension
    return 1.0 + _SHARE_OF_PRICE * (np.asarray(cost, np.float32) - 1.0)

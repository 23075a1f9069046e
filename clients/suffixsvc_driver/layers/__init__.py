"""Drafting layers: what the loop asks, in the order of their price."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from suffixsvc.types import Draft, VerifyCost
from suffixsvc_driver.config import LayerSpec
from suffixsvc_driver.events import Feedback

__all__ = ["ContinuingLayer", "Layer", "PricedLayer"]


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

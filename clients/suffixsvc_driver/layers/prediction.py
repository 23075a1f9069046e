"""Prediction layer: a text that the caller expects as the answer, such as a file before a small change.

The layer drafts the prediction from its beginning. Where the answer departs from it, the layer searches the
last emitted tokens in the prediction, and continues after them:

    prediction   a b c d e f g h i
    answer       a b c X Y e f g h i
    drafted      a b c d   f g h i      Y is not found; "e" is, near the departure

A match of one or two tokens counts only near the departure, longer ones count anywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from suffixsvc.types import Draft, DraftSource, Verified, VerifyCost
from suffixsvc.values import as_token_array
from suffixsvc_driver.drafts.events import QueryLayer
from suffixsvc_driver.settings.driver_config import LayerKind, LayerSpec

#: tokens before a departure and after it that are compared
_CONTEXT: Final = 16
#: length of a match -> largest distance to the departure, tokens
_REACH: Final = {1: 32, 2: 256}
#: tokens of agreement that the beginning of a prediction is worth
_TRUST: Final = 3
#: of agreement, for the probability of the next token; and for a place that departures are measured from
_MOST: Final = 60
_SURE: Final = 4


class PredictionLayer:
    """Drafts a predicted text. Its memory and the time of a query are bounded by the prediction's length.

    Args:
        token_ids: the prediction; at least one token.

    Raises:
        InvalidTokensError: not token ids.
    """

    def __init__(
        self, token_ids: Sequence[int], name: str = "prediction", *, max_draft_tokens: int = 64
    ) -> None:
        self.spec = LayerSpec(name, LayerKind.PREDICTION, max_draft_tokens=max_draft_tokens)
        self._tokens = as_token_array(token_ids)
        self._found = np.zeros(len(self._tokens), np.bool_)
        self._recent: deque[int] = deque(maxlen=_CONTEXT)
        self._next = 0  # the prediction's token after those that the answer agrees with; -1: unknown
        self._agreed = _TRUST
        self._departure = 0

    @property
    def length(self) -> int:
        """Tokens of the prediction."""
        return len(self._tokens)

    @property
    def found(self) -> int:
        """Tokens of the prediction that appeared in the answer so far, in any order: in runs of at least two,
        since a single equal token may be chance, or at the beginning of both."""
        return int(self._found.sum())

    def begin(self, prompt_ids: Sequence[int], cost: VerifyCost) -> None:
        """See the protocol."""
        self._found[:] = False
        self._recent.clear()
        self._next, self._agreed, self._departure = 0, _TRUST, 0

    def draft(self, new_token_ids: Sequence[int], query: QueryLayer) -> Draft:
        """See the protocol."""
        self._follow(new_token_ids)
        if self._next < 0 or not query.budget:
            return Draft.empty()
        tokens = self._tokens[self._next : self._next + query.budget]
        agreed = min(self._agreed, _MOST) + np.arange(len(tokens), dtype=np.float32)
        probs = (1.0 - 1.0 / (np.minimum(agreed, _MOST) + 2.0)).astype(np.float32)
        return Draft.chain(tokens, probs, DraftSource.PREDICTION) if len(tokens) else Draft.empty()

    def end(self, new_token_ids: Sequence[int], verified: Verified | None) -> None:
        """See the protocol."""
        self._follow(new_token_ids)

    def _follow(self, new_token_ids: Sequence[int]) -> None:
        for token in new_token_ids:
            at = self._next
            if 0 <= at < len(self._tokens) and self._tokens[at] == token:
                self._agree(at)
            else:
                if self._next >= 0 and self._agreed >= _SURE:
                    self._departure = self._next
                self._next = -1
            self._recent.append(token)
            if self._next < 0:
                self._search()

    def _agree(self, at: int) -> None:
        # those that the search has matched belong to the run, too
        self._found[max(0, at - min(self._agreed, len(self._recent), _CONTEXT)) : at + 1] = True
        self._next, self._agreed = at + 1, self._agreed + 1
        if self._agreed >= _SURE:
            self._departure = self._next

    def _search(self) -> None:
        """Find the longest match of the recent tokens; of equal ones, the first after the departure."""
        recent = list(self._recent)
        places = np.flatnonzero(self._tokens == recent[-1])
        length = 1
        while length < len(recent) and len(places):
            longer = places[places >= length]
            longer = longer[self._tokens[longer - length] == recent[-1 - length]]
            if not len(longer):
                break
            places, length = longer, length + 1
        if not len(places):
            return
        index = int(np.searchsorted(places, self._departure))
        place = int(places[min(index, len(places) - 1)])
        if abs(place - self._departure) <= _REACH.get(length, len(self._tokens)):
            self._next, self._agreed = place + 1, length
            if length > 1:
                self._found[place + 1 - length : place + 1] = True

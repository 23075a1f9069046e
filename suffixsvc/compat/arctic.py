"""Drop-in replacement of Arctic Inference's suffix decoding classes: switch by changing the import.

    from suffixsvc.compat.arctic import SuffixDecodingCache, SuffixDecodingDraft

The signatures and documented behaviour are those of ``arctic_inference.suffix_decoding`` (version 0.1 and
0.2); docs/compat.md lists the differences and their reasons. The life cycle of a request:

    start_request(id, prompt)                      stop_request(id)         evict_cached_response(id)
    ──────────> active ── speculate, add_active_response ──> cached ──────────────> evicted
                  └ other requests draft from its response     └ the oldest one at max_cached_requests
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Hashable, KeysView, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from suffixsvc.config import Limits
from suffixsvc.core import DraftBounds
from suffixsvc.engine import Session, SuffixCache
from suffixsvc.errors import InvalidConfigError, InvalidInputError, SessionClosedError
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc.types import OutputId, TokenIds, VerifyCost
from suffixsvc.values import as_cost_curve, as_int, as_token_array

#: Tokens of a draft beyond Arctic's bound on the match length. Arctic bounds drafts because its ratios of
#: counts are 1.0 after a single occurrence. Here the probability of the token at the bound is calibrated, and
#: its cost is known, so it can be drafted.
_EXTRA_TOKENS = 1
#: limits of an engine that is created here: Arctic's classes have none
_LIMITS = Limits(max_sessions=1 << 20, max_session_tokens=1 << 26, max_draft_tokens=4096)


@dataclass
class SuffixDecodingDraft:
    """A proposed draft: a tree in topological order, a chain being the common case.

    Attributes:
        token_ids: n proposed tokens.
        parents: the index of each token's parent, -1 at the root.
        probs: P(the whole path up to this token is accepted), estimated; falls along every path.
        score: the sum of ``probs``: the expected number of accepted tokens.
        match_len: tokens of the longest context that predicted the first token.
    """

    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    score: float = 0.0
    match_len: int = 0


class SuffixDecodingCache(ClosedOnExit):
    """Cache of responses, and drafts of what active requests write next.

    Args:
        max_tree_depth: default of ``max_spec_tokens`` in :meth:`speculate`. Matching is not bounded by it:
            contexts of up to 64 tokens are distinguished at no extra cost.
        max_cached_requests: maximum number of cached responses; -1 = no limit, 0 = none: each request then
            drafts from its own prompt and response only. Responses of active requests count and are never
            evicted, so the limit is exceeded while more requests than that are active.
        cache: an open engine that holds the responses, for example ``SuffixCache(folder)``, which keeps them
            across a restart. None: a new one in memory. A given engine is not closed here.
        namespace: path of the namespace in that engine.
        tokenizer: fingerprint of the tokenizer, bound to the namespace (``suffixsvc.fingerprint``).
        verify_cost: cost of verifying a drafted token in plain decode steps, or a curve (see
            ``Session.step``): drafts end where the expected gain falls below the cost.

    Raises:
        InvalidConfigError, InvalidCostError (both ValueError), TokenizerMismatchError.

    The arguments after ``*`` are additions to Arctic's. Thread-safe. :meth:`close` or a ``with`` block frees
    it early.
    """

    def __init__(
        self,
        max_tree_depth: int = 64,
        max_cached_requests: int = -1,
        *,
        cache: SuffixCache | None = None,
        namespace: str = "arctic",
        tokenizer: str | None = None,
        verify_cost: VerifyCost = 0.02,
    ) -> None:
        self._max_tree_depth = as_int("max_tree_depth", max_tree_depth, 1, error=InvalidConfigError)
        self._max_cached_requests = as_int(
            "max_cached_requests", max_cached_requests, -1, error=InvalidConfigError
        )
        as_cost_curve(verify_cost, 0)
        self._verify_cost = verify_cost
        engine = SuffixCache(limits=_LIMITS) if cache is None else cache
        self._owned = engine if cache is None else None
        self._namespace = engine.namespace(namespace, tokenizer)
        self._lock = threading.RLock()
        self._active: dict[Hashable, Session] = {}
        #: oldest first; None while the request is active, or where it has no output
        self._cached: dict[Hashable, OutputId | None] = {}

    @property
    def max_tree_depth(self) -> int:
        """The constructor's argument."""
        return self._max_tree_depth

    @property
    def max_cached_requests(self) -> int:
        """The constructor's argument."""
        return self._max_cached_requests

    @property
    def active_requests(self) -> KeysView[Hashable]:
        """Ids of requests that were started and not stopped."""
        return self._active.keys()

    @property
    def cached_requests(self) -> KeysView[Hashable]:
        """Ids of requests whose responses other requests can be drafted from, active ones included."""
        return self._cached.keys()

    # ---------------------------------------------------------------------------------------- requests

    def start_request(self, req_id: Hashable, prompt_token_ids: npt.NDArray[Any] | Sequence[int]) -> None:
        """Begin a request.

        A cached response of the same id is evicted, and the oldest ones at ``max_cached_requests``.

        Raises:
            ValueError: the request is active, or the prompt is invalid. Nothing was changed.
            StoreError: a response could not be evicted; the request is not active.
            LimitExceededError: a limit of the engine would be exceeded.
        """
        with self._lock:
            if req_id in self._active:
                raise _invalid_request(req_id, "must not be active", "an id that is not active")
            session = self._namespace.open_session(prompt_token_ids)
            try:
                if self._max_cached_requests == 0:
                    session.retract()
                else:
                    if req_id in self._cached:
                        self.evict_cached_response(req_id)
                    self._evict_oldest()
                    self._cached[req_id] = None
            except BaseException:
                session.close(commit=False)
                raise
            self._active[req_id] = session

    def add_active_response(self, req_id: Hashable, token_ids: TokenIds | int) -> None:
        """Append one or several tokens that the model wrote; other requests can draft from them at once.

        Raises:
            ValueError: the request is not active, or the tokens are invalid. Nothing was changed.
        """
        session = self._require_active(req_id)
        if isinstance(token_ids, (int, np.integer)):
            token_ids = [token_ids]
        tokens = as_token_array(token_ids, checked=False)
        try:
            if len(tokens):
                session.step(tokens, max_draft_tokens=0)
        except SessionClosedError:
            raise _not_active(req_id) from None

    def stop_request(self, req_id: Hashable) -> None:
        """End a request. Its response stays cached.

        Raises:
            ValueError: the request is not active.
            StoreError: its response could not be stored; the request stays active.
        """
        session = self._require_active(req_id)
        output_id = session.close()
        with self._lock:
            if self._active.get(req_id) is not session:
                return  # another thread stopped it
            del self._active[req_id]
            if req_id in self._cached:
                self._cached[req_id] = output_id
            elif output_id is not None:  # evicted while it was being stored
                self._forget(output_id)

    def evict_cached_response(self, req_id: Hashable) -> None:
        """Evict a response and free its memory. An active request continues without being shared.

        Raises:
            ValueError: no response of this request is cached.
            StoreError: it could not be deleted and stays cached.
        """
        with self._lock:
            if req_id not in self._cached:
                raise _invalid_request(req_id, "must be cached", "the id of a cached response")
            output_id = self._cached[req_id]
            if output_id is not None:
                self._forget(output_id)
            elif req_id in self._active:
                with contextlib.suppress(SessionClosedError):  # its stop_request() deletes it
                    self._active[req_id].retract()
            del self._cached[req_id]

    # ----------------------------------------------------------------------------------------- drafting

    def speculate(
        self,
        req_id: Hashable,
        context: npt.NDArray[Any] | Sequence[int],
        max_spec_tokens: int | None = None,
        max_spec_factor: float = 1.0,
        max_spec_offset: float = 0.0,
        min_token_prob: float = 0.1,
        use_tree_spec: bool = False,
    ) -> SuffixDecodingDraft:
        """Draft the continuation of ``context``.

        A draft ends where verification no longer pays (``verify_cost``); the arguments are further bounds,
        with the meaning that they have in Arctic Inference.

        Args:
            context: the end of the request's text, of any length. Another text is possible and slower: the
                request's text is then indexed again for this draft.
            max_spec_tokens: maximum length of the draft; None = ``max_tree_depth``.
            max_spec_factor, max_spec_offset: the draft is at most one token longer than
                ``max_spec_factor * match_len + max_spec_offset``, and empty where that is below 1.
            min_token_prob: minimum probability that the path to a token is accepted.
            use_tree_spec: draft a tree instead of a chain.

        Raises:
            ValueError: the request is not active, or an argument is invalid.
        """
        session = self._require_active(req_id)
        tokens = as_token_array(context, "context", checked=False)
        most = self._max_tree_depth if max_spec_tokens is None else max_spec_tokens
        most = as_int("max_spec_tokens", most, 0)
        bounds = DraftBounds(
            _finite("min_token_prob", min_token_prob),
            _finite("max_spec_factor", max_spec_factor),
            _finite("max_spec_offset", max_spec_offset),
            _EXTRA_TOKENS,
        )
        if not len(tokens) or not most:
            session.forget_draft()
            return SuffixDecodingDraft()
        try:
            draft = session.draft_after(tokens, most, self._verify_cost, bool(use_tree_spec), bounds)
        except SessionClosedError:
            raise _not_active(req_id) from None
        if not len(draft):
            return SuffixDecodingDraft()
        parents = draft.parents.tolist()
        paths: list[float] = []
        for parent, p in zip(parents, draft.probs.tolist(), strict=True):
            paths.append(p if parent < 0 else p * paths[parent])
        return SuffixDecodingDraft(
            draft.token_ids.tolist(), parents, paths, sum(paths), int(draft.match_lens[0])
        )

    # ------------------------------------------------------------------------------------------- close

    def close(self) -> None:
        """Discard the active requests, and close the engine if it was created here. Idempotent."""
        with self._lock, contextlib.ExitStack() as stack:  # a failing close does not prevent the others
            if self._owned is not None:
                stack.callback(self._owned.close)
            for session in self._active.values():
                stack.callback(session.close, commit=False)
            self._active.clear()

    # ------------------------------------------------------------------------------------------- internal

    def _require_active(self, req_id: Hashable) -> Session:
        session = self._active.get(req_id)
        if session is None:
            raise _not_active(req_id)
        return session

    def _evict_oldest(self) -> None:
        """Evict the oldest responses of stopped requests until one more fits."""
        if self._max_cached_requests < 0:
            return
        surplus = len(self._cached) - self._max_cached_requests + 1
        finished = (req_id for req_id in list(self._cached) if req_id not in self._active)
        for req_id, _ in zip(finished, range(surplus), strict=False):
            self.evict_cached_response(req_id)

    def _forget(self, output_id: OutputId) -> None:
        self._namespace.delete(output_ids=[output_id], superseded=True)


def _finite(name: str, value: float) -> float:
    try:
        number = math.nan if isinstance(value, (str, bytes, bool)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InvalidInputError(f"{name} must be a finite number", got=repr(value)[:80])
    return number


def _not_active(req_id: Hashable) -> InvalidInputError:
    return _invalid_request(req_id, "must be active", "the id of a started request")


def _invalid_request(req_id: Hashable, condition: str, expected: str) -> InvalidInputError:
    return InvalidInputError(f"request {req_id!r} {condition}", expected=expected, got=repr(req_id)[:80])

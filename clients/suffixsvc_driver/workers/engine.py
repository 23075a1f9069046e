"""Drafting with a small llama.cpp model: sessions in, chains out. No gRPC in here.

The KV of earlier calls is kept: a request costs the tokens that are new since the last one, plus the
tokens it drafts. Drafted tokens that the target agreed with are in the KV already.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from pathlib import Path
from typing import Final

import numpy as np

from suffixsvc.errors import (
    AppendGap,
    InvalidInputError,
    InvalidTokensError,
    LimitExceededError,
    UnknownSessionError,
)
from suffixsvc.types import Draft, DraftSource, FloatArray, TokenIds
from suffixsvc_driver.targets import Batch
from suffixsvc_driver.targets.llama_context import ContextSettings, LlamaContext, Outputs
from suffixsvc_driver.targets.llama_model import LlamaModel, check_ids
from suffixsvc_driver.targets.slots import SlotCache

__all__ = ["DEFAULT_TOP_K", "DraftEngine"]

DEFAULT_TOP_K: Final = 10
_MAX_SESSIONS: Final = 256
_SPEED_TOKENS: Final = 12


class DraftEngine:
    """A draft model and its sessions. Not thread-safe: one request at a time.

    Args:
        path: a GGUF file.
        settings: of the context; ``slots`` sequences keep their KV between calls.

    Raises:
        ModelNotFoundError, ModelCorruptError, ModelError.
    """

    def __init__(self, path: str | Path, settings: ContextSettings) -> None:
        self.model = LlamaModel(path)
        self.context = LlamaContext(self.model, settings)
        self._batch = settings.batch_size
        self._cache = SlotCache(settings.slots)
        self._sessions: OrderedDict[str, list[int]] = OrderedDict()
        self.seconds_per_token = self._measure()

    def close(self) -> None:
        """Free everything. Idempotent."""
        self.context.close()
        self.model.close()

    @property
    def context_size(self) -> int:
        return self.context.slot_size

    def length(self, session_id: str) -> int:
        """Context tokens held for a session, 0 for one nobody knows."""
        return len(self._sessions.get(session_id, ()))

    def forget(self, session_id: str) -> None:
        """Drop a session and the KV that only it used."""
        tokens = self._sessions.pop(session_id, None)
        if tokens is None:
            return
        for slot in self._cache.slots:
            if slot.tokens and slot.tokens[: len(tokens)] == tokens[: len(slot.tokens)]:
                self.context.cut(slot.index, 0)
                slot.truncate(0)

    def draft(
        self,
        session_id: str,
        keep: int,
        new_token_ids: TokenIds,
        max_draft_tokens: int,
        *,
        p_min: float = 0.0,
        top_k: int = 0,
    ) -> Draft:
        """Bring a session's context up to date and draft what follows.

        Args:
            keep: tokens of the session's context that stay; what lies behind them is dropped.
            new_token_ids: appended after ``keep``.
            max_draft_tokens: 0 only computes the context.
            p_min: stop before a token less likely than this.
            top_k: probabilities are over so many best tokens; 0 = 10.

        Returns:
            A chain; ``probs`` are the draft model's own.

        Raises:
            UnknownSessionError: ``keep`` > 0 in a session nobody knows (worker restarted, or evicted).
            AppendGap: ``keep`` beyond the session's end. InvalidTokensError, InvalidInputError.
            LimitExceededError: the context is longer than the model's. Nothing changes.
        """
        context = self._updated(session_id, keep, new_token_ids)
        if not 0.0 <= p_min <= 1.0:
            raise InvalidInputError("p_min is no probability", expected="0 .. 1", got=p_min)
        room = self.context_size - len(context)
        self._sessions[session_id] = context
        self._sessions.move_to_end(session_id)
        while len(self._sessions) > _MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return self._chain(context, min(max_draft_tokens, room), p_min, top_k or DEFAULT_TOP_K)

    def _updated(self, session_id: str, keep: int, new_token_ids: TokenIds) -> list[int]:
        held = self._sessions.get(session_id)
        if held is None and keep > 0:
            raise UnknownSessionError(
                "the worker does not hold this session",
                expected="keep = 0",
                got=keep,
                remedy="Send the whole context again.",
            )
        held = held or []
        if keep < 0 or keep > len(held):
            raise AppendGap(expected=len(held), got=keep)
        context = [*held[:keep], *check_ids(new_token_ids, self.model.vocab_size)]
        if not context:
            raise InvalidTokensError("an empty context", expected="at least one token", got=0)
        if len(context) > self.context_size:
            raise LimitExceededError(
                "the context is longer than the draft model's",
                expected=f"at most {self.context_size} tokens",
                got=len(context),
            )
        return context

    def _chain(self, context: list[int], count: int, p_min: float, top_k: int) -> Draft:
        placement = self._cache.place(context)
        slot = self._cache.carry_out(placement)
        if placement.copy_from is not None:
            self.context.copy(placement.copy_from, slot.index)
        self.context.cut(slot.index, placement.keep)
        at = placement.keep
        while at < len(context) - 1:
            piece = tuple(context[at : min(at + self._batch, len(context) - 1)])
            self.context.decode(piece, at, slot.index, Outputs.NONE)
            slot.extend(Batch(at, piece), len(piece))
            at += len(piece)
        tokens: list[int] = []
        probs: list[float] = []
        last = context[-1]
        for _ in range(count):
            at = len(slot.tokens)
            self.context.decode((last,), at, slot.index, Outputs.ALL)
            slot.extend(Batch(at, (last,)), 1)
            last, prob = _best(self.context.logits(0), top_k)
            if prob < p_min:
                break
            tokens.append(last)
            probs.append(prob)
            if last in self.model.eog_ids:
                break
        # batches are only worth keeping where a text is to be computed again bit for bit
        slot.history.clear()
        return Draft.chain(tokens, probs, DraftSource.DRAFT_MODEL) if tokens else Draft.empty()

    def _measure(self) -> float:
        """Seconds a drafted token takes, median of a few at the start."""
        samples = []
        for at in range(_SPEED_TOKENS):
            before = time.perf_counter()
            self.context.decode((0,), at, 0, Outputs.ALL)
            self.context.logits(0)
            samples.append(time.perf_counter() - before)
        self.context.cut(0, 0)
        return float(np.median(samples[2:]))


def _best(logits: FloatArray, top_k: int) -> tuple[int, float]:
    """The most likely token, the lowest id on ties, and its share among the ``top_k`` best."""
    best = int(logits.argmax())
    k = min(top_k, len(logits))
    top = np.partition(logits, len(logits) - k)[-k:].astype(np.float64)
    return best, float(1.0 / np.exp(top - float(logits[best])).sum())

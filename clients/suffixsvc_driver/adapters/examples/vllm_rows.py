"""vLLM's part in :mod:`vllm_proposer`'s example and tests: the rows of its batch, and when it calls.

As its V1 model runner does it: new requests take free rows; a step writes what was sampled behind a row's
tokens and then asks the proposer about all rows at once; drafts are written into the buffer behind the
tokens, where the next step verifies them; a finished row's place is filled with the last one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from suffixsvc_driver.adapters.examples.recorded_calls import Call, HitRates

__all__ = ["Proposer", "Rows"]


class Proposer(Protocol):
    """What vLLM calls."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: npt.NDArray[np.int32],
        token_ids_cpu: npt.NDArray[np.int32],
        slot_mappings: object = None,
    ) -> list[list[int]]: ...


class _Request:
    def __init__(self, call: Call) -> None:
        self.call = call
        self.written = 0
        self.unread = 0  # steps in which its prompt is still being read
        self.draft: list[int] = []

    @property
    def tokens(self) -> list[int]:
        return [*self.call.prompt, *self.call.response[: self.written]]


class Rows:
    """A batch that writes recorded responses.

    Args:
        rows: at most so many requests at a time.
        length: tokens a row has room for.
        on_drafts: called with the drafts of each step, for whoever wants to look at them.
    """

    def __init__(
        self, rows: int, length: int, on_drafts: Callable[[list[int], list[list[int]]], None] | None = None
    ) -> None:
        self.token_ids_cpu = np.zeros((rows, length), np.int32)
        self.num_tokens_no_spec = np.zeros(rows, np.int32)
        self.rates = HitRates()
        self.texts: list[tuple[int, ...]] = []
        self._requests: list[_Request] = []
        self._waiting: deque[_Request] = deque()
        self._on_drafts = on_drafts

    def write(self, calls: Iterable[Call], proposer: Proposer) -> None:
        """All calls, to their ends."""
        self.add(calls)
        while self.step(proposer):
            pass

    def add(self, calls: Iterable[Call], steps_to_read: int = 1) -> None:
        """Queue calls. ``steps_to_read``: steps that reading each prompt takes (chunked prefill)."""
        for call in calls:
            request = _Request(call)
            request.unread = steps_to_read - 1
            self._waiting.append(request)

    def swap(self, a: int, b: int) -> None:
        """Two rows change places, as they do when the batch is ordered anew."""
        self._requests[a], self._requests[b] = self._requests[b], self._requests[a]
        for array in (self.token_ids_cpu, self.num_tokens_no_spec):
            array[[a, b]] = array[[b, a]]

    def preempt(self, row: int) -> None:
        """A request loses its row and goes on later; its draft is lost."""
        request = self._requests[row]
        request.draft = []
        self._remove(row)
        self._waiting.append(request)

    def __len__(self) -> int:
        return len(self._requests)

    def step(self, proposer: Proposer) -> bool:
        """One step of all rows; False when there is nothing left to do."""
        while self._waiting and len(self._requests) < len(self.num_tokens_no_spec):
            self._enter(self._waiting.popleft())
        if not self._requests:
            return False
        sampled = [self._sample(row, request) for row, request in enumerate(self._requests)]
        drafts = proposer.propose(sampled, self.num_tokens_no_spec, self.token_ids_cpu, slot_mappings=None)
        if self._on_drafts is not None:
            self._on_drafts(self.num_tokens_no_spec[: len(sampled)].tolist(), drafts)
        for row, draft in enumerate(drafts):
            self._requests[row].draft = draft
            end = int(self.num_tokens_no_spec[row])
            self.token_ids_cpu[row, end : end + len(draft)] = draft
        for row in reversed(range(len(self._requests))):
            request = self._requests[row]
            if request.written == len(request.call.response):
                self.texts.append(tuple(request.tokens[len(request.call.prompt) :]))
                self._remove(row)
        return True

    def _enter(self, request: _Request) -> None:
        row, tokens = len(self._requests), request.tokens
        self._requests.append(request)
        self.token_ids_cpu[row, : len(tokens)] = tokens
        self.num_tokens_no_spec[row] = len(tokens)

    def _sample(self, row: int, request: _Request) -> list[int]:
        if request.unread:
            request.unread -= 1
            return []
        accepted = request.call.agrees_with(request.written, request.draft)
        sampled = list(request.call.response[request.written : request.written + accepted + 1])
        end = int(self.num_tokens_no_spec[row])
        self.token_ids_cpu[row, end : end + len(sampled)] = sampled
        self.num_tokens_no_spec[row] = end + len(sampled)
        request.written += len(sampled)
        self.rates.count(len(request.draft), accepted)
        return sampled

    def _remove(self, row: int) -> None:
        """The last row takes its place."""
        last = len(self._requests) - 1
        self.swap(row, last)
        self._requests.pop()

"""Double of vLLM's V1 model runner: the rows of its batch, and when it calls a proposer.

New requests take free rows. A step appends the sampled tokens to each row, then calls the proposer for all
rows at once; drafts are written into the buffer after the tokens, where the next step verifies them. The last
row moves to the place of a finished one.

The model does not stop at the end of a response: a step whose draft was accepted can sample beyond it. The
scheduler cuts afterwards, at the end-of-sequence token or ``max_tokens``; the proposer has seen the surplus.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from support.recorded_calls import Call, HitRates

__all__ = ["END_OF_SEQUENCE", "CachedRequest", "Proposer", "Rows", "Sampling", "as_recorded"]

#: of the model that wrote the recorded log
END_OF_SEQUENCE: Final = 151_645


class Proposer(Protocol):
    """The proposer interface that vLLM calls."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: npt.NDArray[np.int32],
        token_ids_cpu: npt.NDArray[np.int32],
        slot_mappings: object = None,
    ) -> list[list[int]]: ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters that decide where a response ends, as the worker gets them."""

    eos_token_id: int | None = END_OF_SEQUENCE
    stop_token_ids: list[int] = field(default_factory=list)
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: list[str] = field(default_factory=list)
    repetition_detection: None = None


def as_recorded(call: Call) -> Sampling:
    """Return parameters with which a response ends where the recorded one does."""
    ends = call.response[-1] == END_OF_SEQUENCE
    return Sampling(max_tokens=None if ends else len(call.response))


class CachedRequest:
    """A request as the model runner caches it."""

    def __init__(self, name: str, call: Call, sampling: Sampling) -> None:
        self.req_id = name
        self.call = call
        self.sampling_params = sampling
        self.prompt_token_ids = list(call.prompt)
        self.prompt_embeds = None
        self.num_prompt_tokens = len(call.prompt)
        self.output_token_ids: list[int] = []
        self.prefill_steps = 0  # steps that are left of its prefill
        self.draft: list[int] = []


class _InputBatch:
    def __init__(self, rows: int, length: int) -> None:
        self.token_ids_cpu = np.zeros((rows, length), np.int32)
        self.num_tokens_no_spec = np.zeros(rows, np.int32)
        self.req_ids: list[str] = []


class Rows:
    """A batch that emits recorded responses.

    Args:
        rows: largest number of requests in a batch.
        length: capacity of a row in tokens.
        on_drafts: called with the row lengths and the drafts of each step.

    Attributes:
        input_batch, requests: as vLLM's model runner has them. ``requests`` None: a proposer sees rows only.
        texts: the returned tokens of each request that ended.
    """

    def __init__(
        self, rows: int, length: int, on_drafts: Callable[[list[int], list[list[int]]], None] | None = None
    ) -> None:
        self.input_batch = _InputBatch(rows, length)
        self.requests: dict[str, CachedRequest] | None = {}
        self.rates = HitRates()
        self.texts: list[tuple[int, ...]] = []
        self.rows: list[CachedRequest] = []
        self.waiting: deque[CachedRequest] = deque()
        self._finished: list[str] = []
        self._made = 0
        self._on_drafts = on_drafts

    def write(self, calls: Iterable[Call], proposer: Proposer) -> None:
        """Emit the responses of all calls."""
        self.add(calls)
        while self.step(proposer):
            pass

    def add(
        self,
        calls: Iterable[Call],
        prefill_steps: int = 1,
        sampling: Callable[[Call], Sampling] = as_recorded,
    ) -> None:
        """Queue calls. ``prefill_steps``: steps that the prefill of each prompt takes (chunked prefill)."""
        for call in calls:
            request = CachedRequest(f"request-{self._made}", call, sampling(call))
            request.prefill_steps = prefill_steps - 1
            self._made += 1
            self.waiting.append(request)

    def swap(self, a: int, b: int) -> None:
        """Swap two rows, as vLLM does when it reorders the batch."""
        batch = self.input_batch
        self.rows[a], self.rows[b] = self.rows[b], self.rows[a]
        batch.req_ids[a], batch.req_ids[b] = batch.req_ids[b], batch.req_ids[a]
        for array in (batch.token_ids_cpu, batch.num_tokens_no_spec):
            array[[a, b]] = array[[b, a]]

    def preempt(self, row: int) -> None:
        """Take a request's row away; it resumes later without its draft."""
        request = self.rows[row]
        request.draft = []
        self._remove(row)
        self.waiting.appendleft(request)

    def abort(self, row: int) -> None:
        """End a response early, as for a client that disconnected."""
        self._finish(row)

    def __len__(self) -> int:
        return len(self.rows)

    def step(self, proposer: Proposer) -> bool:
        """Run one step of all rows; return False when no work is left."""
        self._remove_finished()
        batch = self.input_batch
        while self.waiting and len(self.rows) < len(batch.num_tokens_no_spec):
            self._enter(self.waiting.popleft())
        if not self.rows:
            return False
        sampled = [self._sample(row, request) for row, request in enumerate(self.rows)]
        drafts = proposer.propose(sampled, batch.num_tokens_no_spec, batch.token_ids_cpu, slot_mappings=None)
        if self._on_drafts is not None:
            self._on_drafts(batch.num_tokens_no_spec[: len(sampled)].tolist(), drafts)
        for row, draft in enumerate(drafts):
            self.rows[row].draft = draft
            end = int(batch.num_tokens_no_spec[row])
            batch.token_ids_cpu[row, end : end + len(draft)] = draft
        for row in reversed(range(len(self.rows))):  # the scheduler
            request = self.rows[row]
            if len(request.output_token_ids) >= len(request.call.response):
                self._finish(row)
        return True

    def _remove_finished(self) -> None:
        """Remove the finished requests: vLLM's worker gets their ids with the next step."""
        for name in self._finished:
            if self.requests is not None:
                del self.requests[name]
        self._finished.clear()

    def _enter(self, request: CachedRequest) -> None:
        row, tokens = len(self.rows), [*request.prompt_token_ids, *request.output_token_ids]
        self.rows.append(request)
        self.input_batch.req_ids.append(request.req_id)
        self.input_batch.token_ids_cpu[row, : len(tokens)] = tokens
        self.input_batch.num_tokens_no_spec[row] = len(tokens)
        if self.requests is not None:
            self.requests[request.req_id] = request

    def _sample(self, row: int, request: CachedRequest) -> list[int]:
        """Sample the tokens of this step; after its end the response starts again."""
        if request.prefill_steps:
            request.prefill_steps -= 1
            return []
        call, written = request.call, len(request.output_token_ids)
        ahead = [call.response[(written + i) % len(call.response)] for i in range(len(request.draft) + 1)]
        accepted = 0
        while accepted < len(request.draft) and request.draft[accepted] == ahead[accepted]:
            accepted += 1
        sampled = ahead[: accepted + 1]
        end = int(self.input_batch.num_tokens_no_spec[row])
        self.input_batch.token_ids_cpu[row, end : end + len(sampled)] = sampled
        self.input_batch.num_tokens_no_spec[row] = end + len(sampled)
        request.output_token_ids += sampled
        left = len(call.response) - written
        self.rates.count(len(request.draft), min(accepted, left), ended=accepted >= left)
        return sampled

    def _finish(self, row: int) -> None:
        request = self.rows[row]
        self.texts.append(tuple(request.output_token_ids[: len(request.call.response)]))
        self._finished.append(request.req_id)
        self._remove(row)

    def _remove(self, row: int) -> None:
        """Remove a row; the last row takes its place."""
        last = len(self.rows) - 1
        self.swap(row, last)
        self.rows.pop()
        self.input_batch.req_ids.pop()

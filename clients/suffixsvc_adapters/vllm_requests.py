"""vLLM's state of its requests: the request of each row, the end of its response, whether it still runs.

vLLM calls a proposer of ``custom_class`` with rows and tokens only. The caller, a model runner, has the rest:
``input_batch.req_ids`` (the request of each row) and ``requests`` (sampling parameters, prompt length).
:class:`RequestTable` finds the runner in the call stack: it is the ``self`` of a calling frame whose input
batch owns the buffer that was passed.

The scheduler ends a response, after the worker. A step verifies several tokens, so the sampled tokens of its
last step can run past the end. The rules of the scheduler and the front end are applied here:

    rule                      source in vLLM (0.32, 0.33)
    ────                      ───────────────────────────
    end-of-sequence token     check_stop: sampling_params.eos_token_id, None with ignore_eos
    stop token                check_stop: sampling_params.stop_token_ids, the generation config's included
    max_tokens, model length  check_stop
    repetition                check_stop: sampling_params.repetition_detection
    stop string               IncrementalDetokenizer.update, in the front end

If vLLM's runner has another layout, only the end-of-sequence tokens of the generation config and of the
tokenizer, and the model's length, end a response, until a runner is found. After that, a step in which the
runner or a request is missing has no drafts; the next step adds the tokens that its responses gained
meanwhile.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import structlog

from suffixsvc_adapters.tracking.tracker_types import DraftRequest

_log = structlog.get_logger(__name__)

#: frames that are searched for the runner, from ``_in_rows`` on: four of this adapter, the runner's own
#: (``propose_draft_token_ids``, which calls the proposer itself), and one for a wrapper of the proposer. Few,
#: because reading a frame's locals may copy them, in every step while no runner is found
_FRAMES: Final = 6


class _Request:
    """A request as the runner caches it (``state``), with values derived from it."""

    def __init__(self, name: str, state: Any) -> None:
        params = state.sampling_params
        ends = {*(params.stop_token_ids or ()), params.eos_token_id}
        self.name = name
        self.state = state
        self.params = params
        self.prompt_length: int = state.num_prompt_tokens
        self.end_ids: frozenset[int] = frozenset(ends - {None})
        self.max_tokens: int = sys.maxsize if params.max_tokens is None else params.max_tokens
        self.repetition = params.repetition_detection
        self.detokenizer: Any = None
        self.ended = False
        self.seen = 0  # tokens of the response
        self.known_from_start = True

    def is_of(self, state: Any) -> bool:
        """Return whether ``state`` is this request in the same turn.

        A request that continues with further input has a longer prompt, a preempted one has not.
        """
        return self.state is state and self.prompt_length == state.num_prompt_tokens


class RequestTable:
    """The requests of one vLLM worker. :meth:`is_over` may be called from any thread.

    Args:
        model_config: vLLM's own.
    """

    def __init__(self, model_config: Any) -> None:
        self._model_config = model_config
        self._max_model_len: int = model_config.max_model_len
        self._runner: Callable[[], Any] = lambda: None
        self._requests: dict[str, _Request] = {}
        self._found = False  # an earlier step found the requests
        self._logged: set[str] = set()
        self._rows_end_ids: frozenset[int] | None = None
        self._tokenizer: Any = None

    def load_tokenizer(self) -> None:
        """Load vLLM's tokenizer, which finds stop strings; without it, stop strings end no stored output."""
        try:
            from vllm.tokenizers import cached_tokenizer_from_config  # noqa: PLC0415 - runs inside vLLM only

            self._tokenizer = cached_tokenizer_from_config(self._model_config)
        except Exception as error:  # the model can be served without
            _log.warning("stop strings do not end stored outputs: no tokenizer", error=repr(error)[:300])

    def draft_requests(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: npt.NDArray[np.int32],
        token_ids_cpu: npt.NDArray[np.int32],
    ) -> dict[int, DraftRequest]:
        """Return the request for a draft of every row that sampled in this step, by row.

        Its tokens end where the response ends: later tokens of the row do not belong to it. Its hint is the
        request id, or the row's number if request ids are unknown. Rows whose response ended before are left
        out: vLLM decodes them until its front end aborts them.
        """
        requests = self._in_rows(sampled_token_ids, token_ids_cpu)
        found: dict[int, DraftRequest] = {}
        if requests is None and self._found:
            return found
        for row, sampled in enumerate(sampled_token_ids):
            if not sampled:
                continue
            tokens = token_ids_cpu[row, : int(num_tokens_no_spec[row])]
            if requests is None:
                found[row] = self._of_row(row, sampled, tokens)
            elif not requests[row].ended:
                found[row] = self._of_request(requests[row], tokens, len(sampled))
        return found

    def is_over(self, name: Hashable) -> bool | None:
        """Return whether vLLM has removed a request; None for a row. A preempted request is not over."""
        if not isinstance(name, str):
            return None
        runner = self._runner()
        # a single look-up: vLLM changes the dict on its own thread meanwhile
        return runner is None or name not in runner.requests

    def _in_rows(
        self, sampled_token_ids: Sequence[Sequence[int]], token_ids_cpu: npt.NDArray[np.int32]
    ) -> dict[int, _Request] | None:
        """The request of every row that sampled; None if they cannot be found in this step."""
        try:
            found = self._look_up(self._find_runner(token_ids_cpu), sampled_token_ids)
        except Exception as error:
            effect = "no drafts in this step" if self._found else "only end-of-sequence tokens end outputs"
            self._log_once(f"vLLM's requests were not found: {effect}", error)
            return None
        self._found = True
        return found

    def _find_runner(self, token_ids_cpu: npt.NDArray[np.int32]) -> Any:
        runner = self._runner()
        if runner is None or runner.input_batch.token_ids_cpu is not token_ids_cpu:
            runner = _calling_runner(token_ids_cpu)
            if runner is None:
                raise LookupError("no calling frame owns these rows")
            self._runner = weakref.ref(runner)  # weak: it holds the model's memory
        return runner

    def _look_up(self, runner: Any, sampled_token_ids: Sequence[Sequence[int]]) -> dict[int, _Request]:
        """The request of every row that sampled. Requests that vLLM has removed are removed here."""
        names, states = runner.input_batch.req_ids, runner.requests
        for name in [name for name in self._requests if name not in states]:
            del self._requests[name]
        return {
            row: self._request(names[row], states[names[row]])
            for row, sampled in enumerate(sampled_token_ids)
            if sampled
        }

    def _request(self, name: str, state: Any) -> _Request:
        request = self._requests.get(name)
        if request is None or not request.is_of(state):
            request = self._requests[name] = _Request(name, state)
            if request.params.stop and self._tokenizer is not None:
                request.detokenizer = self._detokenizer(request)
        return request

    def _of_request(self, request: _Request, row: npt.NDArray[np.int32], sampled: int) -> DraftRequest:
        """``row``: its tokens; ``sampled``: the number of tokens that this step added."""
        written = len(row) - request.prompt_length
        before = max(0, written - sampled)
        seen = min(request.seen, before)
        if before and not request.seen:
            request.known_from_start = False  # its row may have a sequence already
        request.seen = written
        new: list[int] = row[request.prompt_length + seen :].tolist()
        remaining = min(self._max_model_len - request.prompt_length, request.max_tokens) - seen
        kept, ended = _cut(new, remaining, request.end_ids)
        if request.repetition is not None:
            kept, ended = _cut_at_repetition(request, seen, kept, ended)
        if request.detokenizer is not None:
            kept, ended = self._cut_at_stop_string(request, new, kept, ended)
        request.ended = ended
        return DraftRequest(
            row[: request.prompt_length + seen + kept],
            hint=request.name,
            hint_is_unique=request.known_from_start,
            written=kept,
            max_draft_tokens=max(0, remaining - kept - 1),  # the verification step emits one more
            stop_after=request.end_ids,
            last=ended,
        )

    def _of_row(self, row: int, sampled: Sequence[int], tokens: npt.NDArray[np.int32]) -> DraftRequest:
        if self._rows_end_ids is None:
            self._rows_end_ids = self._end_ids_of_model()
        before = len(tokens) - len(sampled)
        remaining = self._max_model_len - before
        kept, ended = _cut(sampled, remaining, self._rows_end_ids)
        return DraftRequest(
            tokens[: before + kept],
            hint=row,
            written=kept,
            max_draft_tokens=max(0, remaining - kept - 1),
            stop_after=self._rows_end_ids,
            last=ended,
        )

    def _end_ids_of_model(self) -> frozenset[int]:
        """End-of-sequence tokens of the generation config, which may have several, and of the tokenizer."""
        ids = self._model_config.try_get_generation_config().get("eos_token_id")
        of_tokenizer = getattr(self._tokenizer, "eos_token_id", None)
        ends = {*(ids if isinstance(ids, (list, tuple)) else [ids]), of_tokenizer}
        return frozenset(end for end in ends if end is not None)

    def _detokenizer(self, request: _Request) -> Any:
        """vLLM's own detokenizer, constructed as its front end does for the same request."""
        try:
            from vllm.v1.engine.detokenizer import IncrementalDetokenizer  # noqa: PLC0415 - inside vLLM only

            state = request.state
            of_front_end = SimpleNamespace(
                request_id=request.name,
                sampling_params=request.params,
                prompt_token_ids=state.prompt_token_ids,
                prompt_embeds=state.prompt_embeds,
            )
            return IncrementalDetokenizer.from_new_request(self._tokenizer, of_front_end)
        except Exception as error:  # the response is stored with the tokens after its stop string
            self._log_once("stop strings do not end stored outputs", error)
            return None

    def _cut_at_stop_string(
        self, request: _Request, new: Sequence[int], kept: int, ended: bool
    ) -> tuple[int, bool]:
        detokenizer = request.detokenizer
        before: int = detokenizer.num_output_tokens()
        try:
            by_token = ended and new[kept - 1] in request.end_ids
            found = detokenizer.update(list(new[:kept]), by_token)
        except Exception as error:  # as above
            self._log_once("stop strings do not end stored outputs", error)
            request.detokenizer = None
            return kept, ended
        if found is None:
            return kept, ended
        return detokenizer.num_output_tokens() - before, True

    def _log_once(self, event: str, error: Exception) -> None:
        if event not in self._logged:
            self._logged.add(event)
            _log.warning(event, reason=repr(error)[:300])


def _cut(sampled: Sequence[int], remaining: int, end_ids: frozenset[int]) -> tuple[int, bool]:
    """Number of sampled tokens that belong to the response, and whether it ends with them."""
    for kept, token in enumerate(sampled, 1):
        if token in end_ids or kept >= remaining:
            return kept, True
    return len(sampled), False


def _cut_at_repetition(request: _Request, before: int, kept: int, ended: bool) -> tuple[int, bool]:
    from vllm.v1.core.sched.utils import check_sequence_repetition  # noqa: PLC0415 - runs inside vLLM only

    written = request.state.output_token_ids
    for n in range(max(before + 1, request.params.min_tokens), before + kept + 1):
        if check_sequence_repetition(written[:n], request.repetition):
            return n - before, True
    return kept, ended


def _calling_runner(token_ids_cpu: npt.NDArray[np.int32]) -> Any:
    """The ``self`` of the calling frame whose input batch has this buffer, or None."""
    frame = sys._getframe(1)
    for _ in range(_FRAMES):
        parent = frame.f_back
        if parent is None:
            return None
        frame = parent
        runner = frame.f_locals.get("self")
        batch = getattr(runner, "input_batch", None)
        if batch is not None and getattr(batch, "token_ids_cpu", None) is token_ids_cpu:
            return runner if isinstance(getattr(runner, "requests", None), Mapping) else None
    return None

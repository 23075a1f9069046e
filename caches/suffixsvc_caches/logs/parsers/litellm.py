"""Parser of LiteLLM's standard logging payloads and rows of its table of spend logs.

    {"id": .., "trace_id": .., "call_type": "acompletion", "status": "success", "startTime": 1719..,
     "model": .., "messages": [..], "response": {"choices": [..]}, "metadata": {..}}

A payload may be in ``standard_logging_object``, as in callbacks. Values may be JSON in a string, as in the
table. Failed calls have no response.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from suffixsvc_caches.logs.base.options import ReadOptions
from suffixsvc_caches.logs.calls.answers import answer_content, choices_of, prompt_content, unwrap_json
from suffixsvc_caches.logs.calls.fields import FieldFinder
from suffixsvc_caches.logs.parsers.base import LabelReader, RawCall

__all__ = ["LiteLlmParser"]

_LABELS: Final = {
    "agent": ("metadata.requester_metadata.agent", "metadata.user_api_key_alias", "end_user"),
    "session": ("session_id", "metadata.requester_metadata.session_id", "trace_id"),
    "model": ("model_group", "model"),
    "kind": ("call_type",),
    "time": ("startTime",),
}


class LiteLlmParser:
    """Parses LiteLLM's payloads."""

    #: the messages of a prompt may hold calls, or be the prompt: all fields are needed
    unneeded: frozenset[str] = frozenset()

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._labels = LabelReader(options, _LABELS)
        self._response = FieldFinder("response_field", options.response_field, ("response",))
        self._prompt = FieldFinder("prompt_field", options.prompt_field, ("messages",))
        self.finders = (self._response, self._prompt, *self._labels.finders)

    def calls(self, record: dict[str, Any]) -> Iterator[RawCall]:
        """Yield one call for each choice. InvalidInputError: there is no response field."""
        payload = record.get("standard_logging_object", record)
        if not isinstance(payload, dict) or not self._response.has(payload):
            raise self._response.missing(record)
        answer = None if payload.get("status") == "failure" else unwrap_json(self._response.find(payload))
        labels = self._labels.read(payload)
        prompt = self._prompt.find(payload)
        for choice in choices_of(answer):
            yield RawCall(
                labels,
                partial(answer_content, choice, self._options),
                lambda: prompt_content(unwrap_json(prompt), self._options),
            )

"""LiteLLM: standard logging payloads, and rows of its table of spend logs.

    {"id": .., "trace_id": .., "call_type": "acompletion", "status": "success", "startTime": 1719..,
     "model": .., "messages": [..], "response": {"choices": [..]}, "metadata": {..}}

A payload may lie under ``standard_logging_object``, as callbacks get it. Values may be JSON in a string, as
the table has them. Failed calls have no response.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from suffixsvc_caches.logs.answers import answer_content, choices_of, prompt_content, unpacked
from suffixsvc_caches.logs.fields import Finder
from suffixsvc_caches.logs.options import ReadOptions
from suffixsvc_caches.logs.shapes.base import LabelReader, RawCall

__all__ = ["LiteLlmLog"]

_LABELS: Final = {
    "agent": ("metadata.requester_metadata.agent", "metadata.user_api_key_alias", "end_user"),
    "session": ("session_id", "metadata.requester_metadata.session_id", "trace_id"),
    "model": ("model_group", "model"),
    "kind": ("call_type",),
    "time": ("startTime",),
}


class LiteLlmLog:
    """Reads LiteLLM's payloads."""

    #: the messages of a prompt may hold calls, or be the prompt: all fields are needed
    unneeded: frozenset[str] = frozenset()

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._labels = LabelReader(options, _LABELS)
        self._response = Finder("response_field", options.response_field, ("response",))
        self._prompt = Finder("prompt_field", options.prompt_field, ("messages",))
        self.finders = (self._response, self._prompt, *self._labels.finders)

    def calls(self, record: dict[str, Any]) -> Iterator[RawCall]:
        """One call for each choice. InvalidInputError where there is no response field."""
        payload = record.get("standard_logging_object", record)
        if not isinstance(payload, dict) or not self._response.has(payload):
            raise self._response.missing(record)
        answer = None if payload.get("status") == "failure" else unpacked(self._response.find(payload))
        labels = self._labels.read(payload)
        asked = self._prompt.find(payload)
        for choice in choices_of(answer):
            yield RawCall(
                labels,
                partial(answer_content, choice, self._options),
                lambda: prompt_content(unpacked(asked), self._options),
            )

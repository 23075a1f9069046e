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

from suffixsvc_caches.logs.calls.answers import unwrap_json
from suffixsvc_caches.logs.parsers.base import RawCall, RecordParser

_LABELS: Final = {
    "agent": ("metadata.requester_metadata.agent", "metadata.user_api_key_alias", "end_user"),
    "session": ("session_id", "metadata.requester_metadata.session_id", "trace_id"),
    "model": ("model_group", "model"),
    "kind": ("call_type",),
    "time": ("startTime",),
}


class LiteLlmParser(RecordParser):
    """Parses LiteLLM's payloads."""

    responses = ("response",)
    prompts = ("messages",)
    label_paths = _LABELS

    def calls(self, record: dict[str, Any]) -> Iterator[RawCall]:
        """Yield one call for each choice. InvalidInputError: there is no response field."""
        payload = record.get("standard_logging_object", record)
        response, prompt, labels = self.find(payload if isinstance(payload, dict) else record)
        failed = isinstance(payload, dict) and payload.get("status") == "failure"
        answer = None if failed else unwrap_json(response)
        yield from self.answers(labels, answer, partial(self.prompt_text, prompt))

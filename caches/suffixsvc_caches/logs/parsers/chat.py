"""Parser of OpenAI logs: chat completions, completions, responses, batches, fine-tuning files.

{"request": {"messages": [..]}, "response": {"choices": [..]}}     logs of proxies
{"messages": [..], "choices": [..]}                                 the same, flat
{"messages": [..], "response": "text"}
{"messages": [.., {"role": "assistant", ..}, ..]}                   fine-tuning: each assistant turn is a call
{"custom_id": .., "response": {"body": {"choices": [..]}}}          batch output; prompts from its input
{"custom_id": .., "body": {"messages": [..]}}                       batch input: no response
{"instructions": .., "input": .., "output": [..]}                   Responses API, flat or as request/response
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.logs.base.options import ReadOptions
from suffixsvc_caches.logs.calls.answers import is_messages, prompt_content, unwrap_json
from suffixsvc_caches.logs.calls.call import Content
from suffixsvc_caches.logs.calls.prompts import PromptText
from suffixsvc_caches.logs.formats.batch_requests import BatchRequests
from suffixsvc_caches.logs.parsers.base import RawCall, RecordParser

_REQUESTS: Final = ("request", "body", "kwargs")
#: in addition to the common paths
_LABELS: Final = {
    "agent": ("request.metadata.agent", "request.agent"),
    "session": ("request.metadata.session_id", "request.session_id", "conversation.id"),
    "model": ("response.model", "request.model", "response.body.model", "body.model"),
    "time": ("response.created", "response.created_at", "response.body.created", "request.created"),
}


class ChatParser(RecordParser):
    """Parses logs of OpenAI-style APIs."""

    responses = ("response", "output", "completion")
    label_paths = _LABELS

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._requests = BatchRequests(options) if options.batch_input else None

    def calls(self, record: dict[str, Any]) -> Iterator[RawCall]:
        """Yield one call for each choice of the answer; without an answer, one for each assistant turn.

        Raises:
            InvalidInputError: neither an answer nor messages.
        """
        response, prompt, labels = self.find(record, required=False)
        if "choices" in record and not self.response.given:
            answer: Any = record
        elif self.response.has(record):
            answer = None if _failed(record) else unwrap_json(response)
        else:
            yield from self.turns(labels, self._conversation(record), PromptText(self.options))
            return
        yield from self.answers(labels, _body(answer), partial(self._prompt_of, record, prompt))

    def _prompt_of(self, record: dict[str, Any], prompt: Any) -> Content:
        if self.prompt.given:
            return self.prompt_text(prompt)
        request = _request(record)
        if request is record and self._requests is not None and "custom_id" in record:
            request = self._requests.body(record["custom_id"])
        return prompt_content(request, self.options)

    def _conversation(self, record: dict[str, Any]) -> list[Any]:
        request = _request(record)
        messages = unwrap_json(request.get("messages"))
        if messages is None:
            raise self.response.missing(record)
        if not is_messages(messages):
            raise InvalidInputError(
                "messages must be a list of objects with a role", got=type(messages).__name__
            )
        # assistant turns of a request were generated in earlier calls: its own has no response
        return messages if request is record else [{"role": "assistant"}]


def _failed(record: dict[str, Any]) -> bool:
    """Whether a record is the answer to a failed request of a batch."""
    response = record.get("response")
    status = response.get("status_code") if isinstance(response, dict) else None
    return "custom_id" in record and (
        bool(record.get("error")) or (isinstance(status, int) and status >= 400)
    )


def _body(answer: Any) -> Any:
    """Unwrap the envelope of a batch answer."""
    if isinstance(answer, dict) and "choices" not in answer and isinstance(answer.get("body"), dict):
        return answer["body"]
    return answer


def _request(record: dict[str, Any]) -> dict[str, Any]:
    """Return the request of a record, or the record itself if it is flat."""
    for key in _REQUESTS:
        request = unwrap_json(record.get(key))
        if isinstance(request, dict):
            inner = request.get("body")
            return inner if isinstance(inner, dict) else request
    return record

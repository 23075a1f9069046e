"""Response objects: the settings of a request with OpenAI's defaults, status, output and usage."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from suffixsvc_driver.decode.generation import Result
from suffixsvc_openai.protocol.errors import ApiError
from suffixsvc_openai.protocol.usage import metrics_of, usage_of
from suffixsvc_openai.responses.items import new_id
from suffixsvc_openai.responses.request import ResponsesRequest

_FORMAT_FIELDS: Final = ("type", "name", "description", "schema", "strict")
_TOOL_FIELDS: Final = ("type", "name", "description", "parameters", "strict")


@dataclass(frozen=True, slots=True)
class Document:
    """A response in all its states.

    Attributes:
        model: of the request that it answers.
        settings: of that request, which is not kept itself.
        large: they may be as long as a long body.
        id: of the response.
        created: seconds since the epoch.
    """

    model: str
    settings: Mapping[str, Any]
    large: bool = False
    id: str = field(default_factory=lambda: new_id("resp"))
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, request: ResponsesRequest, *, large: bool = False) -> Document:
        """Return the response to a request."""
        return cls(request.model, _settings(request), large)

    def begun(self) -> dict[str, Any]:
        """Return the response before its first token."""
        return self._body("in_progress")

    def ended(self, reason: str, output: Sequence[Mapping[str, Any]], result: Result) -> dict[str, Any]:
        """Return the response at its end.

        Args:
            reason: how the text ended: "length", or another.
            output: its items.
            result: of the generation.
        """
        status = status_of(reason)
        body = self._body(status, output)
        if status == "incomplete":
            body["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            body["completed_at"] = int(time.time())
        return {**body, "usage": _usage(result), "metrics": metrics_of([result])}

    def failed(self, error: ApiError, output: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the response that an error ended."""
        return {
            **self._body("failed", output),
            "error": {"code": "server_error", "message": error.body["error"]["message"]},
        }

    def _body(self, status: str, output: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.model,
            "output": list(output),
            "usage": None,
            **self.settings,
        }


def status_of(reason: str) -> str:
    """Return the status of an answer that ended for a reason; its last item has the same."""
    return "incomplete" if reason == "length" else "completed"


def _settings(asked: ResponsesRequest) -> dict[str, Any]:
    """Return the settings of a request, with OpenAI's defaults."""
    reasoning, text = asked.reasoning, asked.text
    return {
        "background": False,
        "frequency_penalty": _or(asked.frequency_penalty, 0.0),
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": asked.max_tool_calls,
        "metadata": asked.metadata or {},
        "parallel_tool_calls": asked.parallel,
        "presence_penalty": _or(asked.presence_penalty, 0.0),
        "previous_response_id": asked.previous_response_id,
        "prompt_cache_key": asked.prompt_cache_key,
        "reasoning": {
            "effort": None if reasoning is None else reasoning.effort,
            "summary": None if reasoning is None else reasoning.summary,
        },
        "safety_identifier": asked.safety_identifier,
        "service_tier": "default",
        "store": asked.stored,
        "temperature": _or(asked.temperature, 1.0),
        "text": {
            "format": _format(asked.format),
            "verbosity": (None if text is None else text.verbosity) or "medium",
        },
        "tool_choice": "auto" if asked.tool_choice is None else asked.tool_choice,
        "tools": [{name: tool.get(name) for name in _TOOL_FIELDS} for tool in asked.tools or ()],
        "top_logprobs": 0,
        "top_p": _or(asked.top_p, 1.0),
        "truncation": asked.truncation or "disabled",
        "user": asked.user,
    }


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _format(given: Mapping[str, Any]) -> dict[str, Any]:
    if given["type"] != "json_schema":
        return {"type": given["type"]}
    return {**{name: given.get(name) for name in _FORMAT_FIELDS}, "strict": bool(given.get("strict"))}


def _usage(result: Result) -> dict[str, Any]:
    """Return the usage under its names in this API."""
    usage = usage_of([result], 1)
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "cache_write_tokens": 0,
        },
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {
            "reasoning_tokens": usage["completion_tokens_details"]["reasoning_tokens"],
        },
        "total_tokens": usage["total_tokens"],
    }

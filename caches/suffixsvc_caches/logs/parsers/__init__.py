"""Record parsers: extraction of calls from the records of each log format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from suffixsvc_caches.logs.base.options import LogFormat, ReadOptions
from suffixsvc_caches.logs.parsers.base import Labels, RawCall, RecordParser
from suffixsvc_caches.logs.parsers.chat import ChatParser
from suffixsvc_caches.logs.parsers.langfuse import LangfuseParser
from suffixsvc_caches.logs.parsers.litellm import LiteLlmParser
from suffixsvc_caches.logs.parsers.mapped import FieldParser
from suffixsvc_caches.logs.parsers.sharegpt import ShareGptParser, is_sharegpt

__all__ = ["Labels", "RawCall", "RecordParser", "detect_format", "open_parser"]

#: formats of other records than fields
_PARSERS: Final[Mapping[LogFormat, type[RecordParser]]] = {
    LogFormat.OPENAI_CHAT: ChatParser,
    LogFormat.OPENAI_RESPONSES: ChatParser,
    LogFormat.OPENAI_BATCH: ChatParser,
    LogFormat.LITELLM: LiteLlmParser,
    LogFormat.LANGFUSE: LangfuseParser,
    LogFormat.SHAREGPT: ShareGptParser,
}


def open_parser(form: LogFormat, options: ReadOptions) -> RecordParser:
    """Return the parser of a format, for one file: its field finders have state."""
    return _PARSERS.get(form, FieldParser)(options)


def detect_format(record: dict[str, Any]) -> LogFormat | None:  # noqa: PLR0911 - a list of cases
    """Detect the format of a record; None if unknown. The most specific keys are tested first."""
    has = record.keys()
    request = record.get("request")
    inner = request if isinstance(request, dict) else record
    if "response_token_ids" in has:
        return LogFormat.RECORDINGS
    if {"dataset", "session_id", "response"} <= has:
        return LogFormat.TRACES
    if "standard_logging_object" in has or (
        {"messages", "response"} <= has and has & {"call_type", "model_group"}
    ):
        return LogFormat.LITELLM
    if _is_langfuse(record):
        return LogFormat.LANGFUSE
    if "custom_id" in has and has & {"response", "body"}:
        return LogFormat.OPENAI_BATCH
    if isinstance(record.get("output"), list) or (isinstance(request, dict) and "input" in inner):
        return LogFormat.OPENAI_RESPONSES
    if "messages" in inner or "choices" in has or (isinstance(request, dict) and "response" in has):
        return LogFormat.OPENAI_CHAT
    if has & {"response", "completion", "output", "output_token_ids", "answer", "generated_text", "text"}:
        return LogFormat.JSONL
    return LogFormat.SHAREGPT if is_sharegpt(record) else None


def _is_langfuse(record: dict[str, Any], levels: int = 3) -> bool:
    for key in ("data", "traces", "observations"):
        inside = record.get(key)
        if isinstance(inside, list) and levels:
            return all(
                isinstance(one, dict) and ("input" in one or _is_langfuse(one, levels - 1))
                for one in inside[:1]
            )
    own = record.keys() & {
        "traceId",
        "trace_id",
        "sessionId",
        "projectId",
        "project_id",
        "parentObservationId",
    }
    return {"input", "output"} <= record.keys() and bool(own)

"""The shapes of records: where in a log's records the calls are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from suffixsvc_caches.logs.options import LogFormat, ReadOptions
from suffixsvc_caches.logs.shapes.base import Labels, RawCall, Shape
from suffixsvc_caches.logs.shapes.chat import ChatLog
from suffixsvc_caches.logs.shapes.langfuse import LangfuseLog
from suffixsvc_caches.logs.shapes.litellm import LiteLlmLog
from suffixsvc_caches.logs.shapes.mapped import Mapped
from suffixsvc_caches.logs.shapes.sharegpt import ShareGptLog, is_sharegpt

__all__ = ["Labels", "RawCall", "Shape", "detect_format", "open_shape"]

_SHAPES: Final[Mapping[LogFormat, Callable[[ReadOptions], Shape]]] = {
    LogFormat.JSONL: Mapped,
    LogFormat.TRACES: Mapped,
    LogFormat.RECORDINGS: Mapped,
    LogFormat.PARQUET: Mapped,
    LogFormat.CSV: Mapped,
    LogFormat.OPENAI_CHAT: ChatLog,
    LogFormat.OPENAI_RESPONSES: ChatLog,
    LogFormat.OPENAI_BATCH: ChatLog,
    LogFormat.LITELLM: LiteLlmLog,
    LogFormat.LANGFUSE: LangfuseLog,
    LogFormat.SHAREGPT: ShareGptLog,
}


def open_shape(form: LogFormat, options: ReadOptions) -> Shape:
    """The reader of records of a format, for one file: it remembers which fields it has seen."""
    return _SHAPES[form](options)


def detect_format(record: dict[str, Any]) -> LogFormat | None:  # noqa: PLR0911 - a list of cases
    """The format that a record looks like, or None. The most telling keys are asked for first."""
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

"""Langfuse exports: generations, and traces with the observations in them.

    {"id": .., "type": "GENERATION", "traceId": .., "name": "planner", "startTime": "2025-..", "model": ..,
     "input": [messages] | "text", "output": {message} | "text"}
    {"id": .., "sessionId": .., "observations": [{"type": "GENERATION", ..}, ..]}
    {"data": [..]}  {"traces": [..]}                                     pages of the API, exported sessions

Names come in camelCase (API, download) and snake_case (blob storage); inputs and outputs as values or as
JSON in a string. Spans and events are not calls of a model. A trace without observations counts by its
own input and output, as the table of traces exports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from suffixsvc_caches.logs.answers import answer_content, choices_of, prompt_content, unpacked
from suffixsvc_caches.logs.fields import Finder
from suffixsvc_caches.logs.options import ReadOptions
from suffixsvc_caches.logs.shapes.base import LabelReader, RawCall
from suffixsvc_caches.logs.times import as_time

__all__ = ["LangfuseLog"]

_LABELS: Final = {
    "agent": ("name",),
    "session": ("sessionId", "session_id", "traceId", "trace_id"),
    "model": ("model", "providedModelName", "provided_model_name"),
    "time": ("startTime", "start_time", "timestamp"),
}
_INSIDE: Final = ("data", "traces", "observations")


class LangfuseLog:
    """Reads observations and traces."""

    #: the messages of a prompt may hold calls, or be the prompt: all fields are needed
    unneeded: frozenset[str] = frozenset()

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._labels = LabelReader(options, _LABELS)
        self._response = Finder("response_field", options.response_field, ("output",))
        self._prompt = Finder("prompt_field", options.prompt_field, ("input",))
        self.finders = (self._response, self._prompt, *self._labels.finders)

    def calls(self, record: dict[str, Any]) -> Iterator[RawCall]:
        """The generations in a record, in the order of time. InvalidInputError: it is no observation."""
        inside = next((record[key] for key in _INSIDE if isinstance(record.get(key), list)), None)
        if inside is not None:
            # observations name their trace; the session stands in the trace alone
            session = record.get("sessionId") if "observations" in record else None
            for one in sorted((one for one in inside if isinstance(one, dict)), key=_begin):
                yield from self.calls({**one, "sessionId": session} if session else one)
            return
        if "type" in record and record["type"] != "GENERATION":
            return
        if not self._response.has(record):
            raise self._response.missing(record)
        labels = self._labels.read(record)
        asked = self._prompt.find(record)
        for choice in choices_of(unpacked(self._response.find(record))):
            yield RawCall(
                labels,
                partial(answer_content, choice, self._options),
                lambda: prompt_content(unpacked(asked), self._options),
            )


def _begin(observation: dict[str, Any]) -> float:
    value = observation.get("startTime", observation.get("start_time", observation.get("timestamp")))
    time = as_time(value)
    return 0.0 if time is None else time

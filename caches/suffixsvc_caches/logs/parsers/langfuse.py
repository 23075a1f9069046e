"""Parser of Langfuse exports: generations, and traces with their observations.

    {"id": .., "type": "GENERATION", "traceId": .., "name": "planner", "startTime": "2025-..", "model": ..,
     "input": [messages] | "text", "output": {message} | "text"}
    {"id": .., "sessionId": .., "observations": [{"type": "GENERATION", ..}, ..]}
    {"data": [..]}  {"traces": [..]}                                     pages of the API, exported sessions

Names are in camelCase (API, download) or snake_case (blob storage); inputs and outputs are values or JSON in
a string. Spans and events are not model calls. A trace without observations is a call with the trace's input
and output, as in exports of the table of traces.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from suffixsvc_caches.logs.base.times import as_time
from suffixsvc_caches.logs.calls.answers import unwrap_json
from suffixsvc_caches.logs.parsers.base import RawCall, RecordParser

_LABELS: Final = {
    "agent": ("name",),
    "session": ("sessionId", "session_id", "traceId", "trace_id"),
    "model": ("model", "providedModelName", "provided_model_name"),
    "time": ("startTime", "start_time", "timestamp"),
}
_INSIDE: Final = ("data", "traces", "observations")


class LangfuseParser(RecordParser):
    """Parses observations and traces."""

    responses = ("output",)
    prompts = ("input",)
    label_paths = _LABELS

    def calls(self, record: dict[str, Any]) -> Iterator[RawCall]:
        """Yield the generations of a record by time. InvalidInputError: it is not an observation."""
        inside = next((record[key] for key in _INSIDE if isinstance(record.get(key), list)), None)
        if inside is not None:
            # observations name their trace; only the trace names the session
            session = record.get("sessionId") if "observations" in record else None
            for one in sorted((one for one in inside if isinstance(one, dict)), key=_begin):
                yield from self.calls({**one, "sessionId": session} if session else one)
            return
        if "type" in record and record["type"] != "GENERATION":
            return
        response, prompt, labels = self.find(record)
        yield from self.answers(labels, unwrap_json(response), partial(self.prompt_text, prompt))


def _begin(observation: dict[str, Any]) -> float:
    value = observation.get("startTime", observation.get("start_time", observation.get("timestamp")))
    time = as_time(value)
    return 0.0 if time is None else time

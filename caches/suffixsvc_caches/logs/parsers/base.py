"""Parser protocol, labels of records, and calls whose texts are not rendered yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from suffixsvc_caches.logs.base.options import ReadOptions
from suffixsvc_caches.logs.base.times import as_time
from suffixsvc_caches.logs.calls.call import Content
from suffixsvc_caches.logs.calls.fields import FieldFinder, FieldLookups

__all__ = ["LabelReader", "Labels", "RawCall", "RecordParser"]

#: default paths of labels
_USUAL: Final[Mapping[str, tuple[str, ...]]] = {
    "agent": ("agent", "agent_name", "metadata.agent", "meta.agent"),
    "session": (
        "session_id",
        "sessionId",
        "session",
        "conversation_id",
        "conversationId",
        "thread_id",
        "trace_id",
        "traceId",
        "metadata.session_id",
        "metadata.conversation_id",
        "metadata.trace_id",
    ),
    "model": ("model", "model_name", "meta.model", "metadata.model"),
    "kind": ("kind", "class", "category", "metadata.kind", "dataset"),
    "time": ("time", "timestamp", "created_at", "created", "start_time", "startTime", "ts", "meta.timestamp"),
    "tokenizer": ("tokenizer",),
}


class Labels(NamedTuple):
    """Labels of a call; "" and None where the record has none."""

    agent: str
    session: str
    model: str
    kind: str
    time: float | None
    tokenizer: str


@dataclass(slots=True)
class RawCall:
    """A call whose texts are rendered on demand.

    Attributes:
        labels: its labels.
        response, prompt: return the text or the ids; an empty response means that there is none. They must be
            called before the parser's next call is requested. InvalidInputError: the record is malformed.
        in_conversation: the call is a turn of a conversation that the record has.
    """

    labels: Labels
    response: Callable[[], Content]
    prompt: Callable[[], Content]
    in_conversation: bool = False


class RecordParser(Protocol):
    """Extracts the calls from the records of one format."""

    @property
    def finders(self) -> tuple[FieldFinder, ...]:
        """Finders of the fields that the user can name."""

    @property
    def unneeded(self) -> frozenset[str]:
        """Top-level fields that are only needed for prompts."""

    def calls(self, record: dict[str, Any]) -> Iterator[RawCall]:
        """Yield the calls of a record.

        Raises:
            InvalidInputError: it has no call.
        """


class LabelReader:
    """Reads the labels of records.

    Args:
        options: paths that the user named.
        special: additional default paths by label, with priority over the common ones.
    """

    def __init__(self, options: ReadOptions, special: Mapping[str, tuple[str, ...]] | None = None) -> None:
        special = special or {}
        self.finders = tuple(
            FieldFinder(f"{name}_field", getattr(options, f"{name}_field"), (*special.get(name, ()), *usual))
            for name, usual in _USUAL.items()
        )
        self._lookups = FieldLookups(self.finders)

    def read(self, record: dict[str, Any]) -> Labels:
        """Return the labels of a record."""
        agent, session, model, kind, time, tokenizer = self._lookups.find(record)
        return Labels(
            _name(agent),
            _name(session),
            _name(model),
            _name(kind),
            None if time is None else as_time(time),
            _name(tokenizer),
        )


def _name(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return ""

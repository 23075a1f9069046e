"""What every shape of records shares: a call before its texts are worked out, and the labels it carries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from suffixsvc_caches.logs.call import Content
from suffixsvc_caches.logs.fields import Finder, Lookups
from suffixsvc_caches.logs.options import ReadOptions
from suffixsvc_caches.logs.times import as_time

__all__ = ["LabelReader", "Labels", "RawCall", "Shape"]

#: where records usually have their labels
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
    """Whose call it is."""

    agent: str
    session: str
    model: str
    kind: str
    time: float | None
    tokenizer: str


@dataclass(slots=True)
class RawCall:
    """A call whose texts are worked out only when it is wanted.

    Attributes:
        response, prompt: make the text or ids; InvalidInputError where the record is malformed. An empty
            response stands for none. To be asked before the next call is.
        together: whether it is one of the turns of a conversation that the record holds.
    """

    labels: Labels
    response: Callable[[], Content]
    prompt: Callable[[], Content]
    together: bool = False


class Shape(Protocol):
    """Finds the calls in records of one kind."""

    @property
    def finders(self) -> tuple[Finder, ...]:
        """What looks up the fields that the user may have named."""

    @property
    def unneeded(self) -> frozenset[str]:
        """Top-level fields that need not be read where prompts are not wanted."""

    def calls(self, record: dict[str, Any]) -> Iterator[RawCall]:
        """The calls of a record.

        Raises:
            InvalidInputError: it holds none.
        """


class LabelReader:
    """Reads the labels of records.

    Args:
        special: label -> the fields where this shape has it, before those where records usually have it.
    """

    def __init__(self, options: ReadOptions, special: Mapping[str, tuple[str, ...]] | None = None) -> None:
        special = special or {}
        self.finders = tuple(
            Finder(f"{name}_field", getattr(options, f"{name}_field"), (*special.get(name, ()), *usual))
            for name, usual in _USUAL.items()
        )
        self._lookups = Lookups(self.finders)

    def read(self, record: dict[str, Any]) -> Labels:
        """The labels of a record; "" and None for those it does not have."""
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

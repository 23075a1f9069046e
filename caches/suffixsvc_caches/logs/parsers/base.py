"""Base class of parsers, labels of records, and calls whose texts are not rendered yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from suffixsvc_caches.logs.base.options import ReadOptions
from suffixsvc_caches.logs.base.times import as_time
from suffixsvc_caches.logs.calls.answers import answer_content, choices_of, prompt_content, unwrap_json
from suffixsvc_caches.logs.calls.call import Content
from suffixsvc_caches.logs.calls.fields import FieldFinder
from suffixsvc_caches.logs.calls.messages import completion_text
from suffixsvc_caches.logs.calls.prompts import PromptText

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


class RecordParser:
    """Base class: extracts the calls from the records of one format, in one file.

    Subclasses set the default paths of fields, by priority.

    Args:
        options: paths that the user named; how to render texts.

    Attributes:
        finders: finders of the fields that the user can name; they have state.
        unneeded: top-level fields that are only needed for prompts. None, if messages can be prompts or have
            calls.
    """

    #: default paths of the response, of the prompt, and of labels in addition to the common ones
    responses: tuple[str, ...]
    prompts: tuple[str, ...] = ()
    label_paths: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.response = FieldFinder("response_field", options.response_field, self.responses)
        self.prompt = FieldFinder("prompt_field", options.prompt_field, self.prompts)
        paths = {label: (*self.label_paths.get(label, ()), *usual) for label, usual in _USUAL.items()}
        self.label_finders = tuple(
            FieldFinder(name := f"{label}_field", getattr(options, name), usual)
            for label, usual in paths.items()
        )
        self.finders = (self.response, self.prompt, *self.label_finders)
        self.unneeded = frozenset[str]()

    def calls(self, record: dict[str, Any]) -> Iterator[RawCall]:
        """Yield the calls of a record.

        Raises:
            InvalidInputError: it has no call.
        """
        raise NotImplementedError

    def find(self, record: dict[str, Any], *, required: bool = True) -> tuple[Any, Any, Labels]:
        """Return the response, the prompt and the labels of a record.

        Raises:
            InvalidInputError: ``required``, and there is no response field; a null response is not an error.
        """
        response, prompt = self.response.find(record), self.prompt.find(record)
        agent, session, model, kind, time, tokenizer = (finder.find(record) for finder in self.label_finders)
        if required and response is None and not self.response.has(record):
            raise self.response.missing(record)
        at = None if time is None else as_time(time)
        labels = Labels(_name(agent), _name(session), _name(model), _name(kind), at, _name(tokenizer))
        return response, prompt, labels

    def answers(self, labels: Labels, answer: Any, prompt: Callable[[], Content]) -> Iterator[RawCall]:
        """Yield one call for each choice of an answer."""
        for choice in choices_of(answer):
            yield RawCall(labels, partial(answer_content, choice, self.options), prompt)

    def prompt_text(self, value: Any) -> Content:
        """Render a prompt, which may be JSON in a string."""
        return prompt_content(unwrap_json(value), self.options)

    def turns(self, labels: Labels, messages: Iterable[Any], prompt: PromptText) -> Iterator[RawCall]:
        """Yield one call for each turn of the assistant; ``prompt`` has what precedes the messages."""
        for message in messages:
            if isinstance(message, dict) and message.get("role") == "assistant":
                response = partial(completion_text, message, self.options.tool_format, self.options.reasoning)
                yield RawCall(labels, response, prompt.text, in_conversation=True)
            prompt.add(message)


def _name(value: Any) -> str:
    return str(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""

"""Options of reading logs: frozen and validated."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from suffixsvc.errors import InvalidConfigError
from suffixsvc_caches.logs.base.sources import can_decode
from suffixsvc_caches.logs.base.times import parse_duration, parse_time

E = TypeVar("E", bound=enum.StrEnum)

#: 64 MiB; the longest prompts today are a few MB
MAX_LINE_BYTES: Final = 1 << 26
#: 128 MiB; most writers use pages of 1 MiB, some of 100 MB
MAX_PAGE_BYTES: Final = 1 << 27
#: Logs nest to about ten levels. Functions that traverse a record are recursive.
MAX_DEPTH: Final = 128
_DEEPEST: Final = 256


class LogFormat(enum.StrEnum):
    """Format of the records of a log; the physical format and the compression are detected."""

    AUTO = "auto"
    #: fields named by the options, or common ones
    JSONL = "jsonl"
    #: dataset, session_id, agent, turn, prompt, response, meta
    TRACES = "traces"
    #: recordings of this project: token ids
    RECORDINGS = "recordings"
    OPENAI_CHAT = "openai-chat"
    OPENAI_RESPONSES = "openai-responses"
    OPENAI_BATCH = "openai-batch"
    LITELLM = "litellm"
    LANGFUSE = "langfuse"
    #: conversations of turns: from, value
    SHAREGPT = "sharegpt"
    #: columns as fields
    PARQUET = "parquet"
    #: the same, of CSV and TSV
    CSV = "csv"
    #: each file is one response
    TEXT = "text"


class ToolFormat(enum.StrEnum):
    """Format of the tool calls that a model generates."""

    #: <tool_call>\n{"name": .., "arguments": ..}\n</tool_call> (Qwen, Hermes)
    HERMES = "hermes"
    #: {"name": .., "parameters": ..} (Llama 3.1 and later)
    LLAMA3 = "llama3"
    #: [TOOL_CALLS] [{"name": .., "arguments": ..}] (Mistral up to version 7 of its tokenizer, SentencePiece)
    MISTRAL = "mistral"
    #: [TOOL_CALLS][{"name": .., "arguments": ..}] (Mistral's Tekken tokenizer, versions 3 and 7)
    MISTRAL_TEKKEN = "mistral-tekken"
    #: [TOOL_CALLS]name[ARGS]{..} (Mistral's Tekken tokenizer, version 13)
    MISTRAL_V13 = "mistral-v13"
    #: {"name": .., "arguments": ..}
    JSON = "json"
    #: tool calls are omitted
    NONE = "none"


class ChatTemplate(enum.StrEnum):
    """Template that renders messages to a prompt."""

    #: <|im_start|>role\n .. <|im_end|>\n
    CHATML = "chatml"
    #: the contents, one after the other, a newline between
    PLAIN = "plain"
    #: no prompt
    NONE = "none"


class SplitBy(enum.StrEnum):
    """Rule by which calls are grouped to sessions."""

    FIELD = "field"
    GAP = "gap"
    LINE = "line"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class SessionSplit:
    """Division of a log into sessions.

    Attributes:
        by: the rule.
        gap_seconds: with SplitBy.GAP, the pause after which a session begins.
    """

    by: SplitBy = SplitBy.FIELD
    gap_seconds: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse "field", "line", "file" or "gap:30m". InvalidConfigError: another text."""
        name, colon, rest = text.partition(":")
        if name == SplitBy.GAP:
            return cls(SplitBy.GAP, parse_duration(rest, "the gap between sessions"))
        if colon or name not in set(SplitBy):
            raise InvalidConfigError(
                "split must be field, line, file or gap:DURATION such as gap:30m", got=repr(text)[:80]
            )
        return cls(SplitBy(name))


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Filter of calls; the default admits all.

    Attributes:
        agents, models, kinds: exact names; empty = all.
        since, until: seconds since the epoch, since <= time < until; if one is set, calls without a time are
            rejected.
        min_length, max_length: length of the response in characters, or in tokens for logs of token ids.
    """

    agents: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    since: float | None = None
    until: float | None = None
    min_length: int = 0
    max_length: int | None = None

    def __post_init__(self) -> None:
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise InvalidConfigError("since must be < until", got=f"{self.since} and {self.until}")
        if self.min_length < 0 or (self.max_length is not None and self.max_length < max(1, self.min_length)):
            raise InvalidConfigError(
                "lengths must be 0 <= min_length <= max_length and max_length >= 1",
                got=f"{self.min_length} and {self.max_length}",
            )

    def admits(self, agent: str, model: str, kind: str, time: float | None) -> bool:
        """Whether a call with these labels passes the filter."""
        return (
            (not self.agents or agent in self.agents)
            and (not self.models or model in self.models)
            and (not self.kinds or kind in self.kinds)
            and (self.since is None or (time is not None and time >= self.since))
            and (self.until is None or (time is not None and time < self.until))
        )

    def admits_length(self, length: int) -> bool:
        """Whether a response of this length passes the filter."""
        return length >= self.min_length and (self.max_length is None or length <= self.max_length)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of reading logs; the defaults suit most logs.

    Attributes:
        format: format of the records; AUTO detects it from the first ones.
        prompt_field, response_field, agent_field, session_field, model_field, kind_field, time_field,
            tokenizer_field: path of the value in a record: names joined by dots, numbers for list indices
            (``choices.0.message.content``; -1 is the last). "" = common names.
        tool_format: format of tool calls in responses and prompts.
        chat_template: rendering of messages to a prompt.
        reasoning: prepend the logged reasoning to the response, in <think> tags.
        want_prompt: False leaves ``LogCall.prompt`` empty, which is faster.
        split: division of a log into sessions.
        filter: filter of calls.
        strict: raise the first fault instead of skipping it.
        encoding: of text formats; a byte order mark in the file takes precedence. utf-16 and utf-32 require
            the mark: without it the file is damaged.
        max_line_bytes: size limit of lines, records, rows and text files; larger ones are malformed and are
            never loaded. A record of JSON takes 1 to 60 times its bytes as Python values, one at a time.
        max_page_bytes: size limit of decompressed Parquet pages; row groups with larger ones are skipped.
        max_depth: limit of nested lists and objects; records that exceed it are malformed.
        include, exclude: patterns as in .gitignore for the files of folders. Without ``include``, all files
            with names of logs; in the format TEXT, all files. ``exclude`` extends the default exclusions; a
            pattern that begins with ! removes one.
        batch_input: input files of the batch API, for the prompts of its outputs.
    """

    format: LogFormat = LogFormat.AUTO
    prompt_field: str = ""
    response_field: str = ""
    agent_field: str = ""
    session_field: str = ""
    model_field: str = ""
    kind_field: str = ""
    time_field: str = ""
    tokenizer_field: str = ""
    tool_format: ToolFormat = ToolFormat.HERMES
    chat_template: ChatTemplate = ChatTemplate.CHATML
    reasoning: bool = True
    want_prompt: bool = True
    split: SessionSplit = field(default_factory=SessionSplit)
    filter: LogFilter = field(default_factory=LogFilter)
    strict: bool = False
    encoding: str = "utf-8"
    max_line_bytes: int = MAX_LINE_BYTES
    max_page_bytes: int = MAX_PAGE_BYTES
    max_depth: int = MAX_DEPTH
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    batch_input: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        for name in _FIELDS:
            path = getattr(self, name)
            if not isinstance(path, str) or (path and "" in path.split(".")):
                raise InvalidConfigError(f"{name} must be names joined by dots", got=repr(path)[:80])
        for name in ("max_line_bytes", "max_page_bytes"):
            if getattr(self, name) < 1:
                raise InvalidConfigError(f"{name} must be >= 1", got=getattr(self, name))
        if not 1 <= self.max_depth <= _DEEPEST:
            raise InvalidConfigError(f"max_depth must be 1 .. {_DEEPEST}", got=self.max_depth)
        if not can_decode(self.encoding):
            raise InvalidConfigError(
                "encoding must be an encoding of text that Python knows",
                got=repr(self.encoding)[:80],
                remedy="For example utf-8, utf-16 or latin-1.",
            )

    @classmethod
    def parse(cls, **plain: Any) -> Self:
        """Build options from plain strings, numbers and lists, as of a command line or a TOML file.

        Args:
            plain: fields of this class and of ``LogFilter``: enumerations by value, ``split`` as
                :meth:`SessionSplit.parse` takes it, ``since`` and ``until`` as ISO 8601 or numbers.

        Raises:
            InvalidConfigError: an unknown value, or an unknown name.
        """
        of_filter = {one.name for one in fields(LogFilter)}
        known = of_filter | {one.name for one in fields(cls)} - {"filter"}
        for name in plain.keys() - known:
            raise InvalidConfigError(f"unknown option {name!r}", expected=_one_of(name, sorted(known)))
        values = plain | {name: parse(plain[name], name) for name, parse in _PARSERS.items() if name in plain}
        filters = {name: values.pop(name) for name in of_filter & values.keys()}
        return cls(filter=LogFilter(**filters), **values)


_FIELDS: Final = tuple(one.name for one in fields(ReadOptions) if one.name.endswith("_field"))


def _choice(kind: type[E]) -> Callable[[Any, str], E]:
    def parse(value: Any, name: str) -> E:
        try:
            return kind(value)
        except ValueError:
            expected = _one_of(value, [str(one) for one in kind])
            raise InvalidConfigError(f"unknown {name}", expected=expected, got=repr(value)[:80]) from None

    return parse


def _one_of(name: str, known: list[str]) -> str:
    near = get_close_matches(str(name), known, 1)
    return f"{', '.join(known)}" + (f" (did you mean {near[0]}?)" if near else "")


#: conversions of plain values
_PARSERS: Final[dict[str, Callable[[Any, str], Any]]] = {
    "format": _choice(LogFormat),
    "tool_format": _choice(ToolFormat),
    "chat_template": _choice(ChatTemplate),
    "split": lambda text, _name: SessionSplit.parse(text),
    **dict.fromkeys(("agents", "models", "kinds"), lambda names, _name: frozenset(names)),
    **dict.fromkeys(("since", "until"), lambda at, name: None if at is None else parse_time(at, name)),
    **dict.fromkeys(("include", "exclude"), lambda patterns, _name: tuple(patterns)),
    "batch_input": lambda paths, _name: tuple(map(Path, paths)),
}

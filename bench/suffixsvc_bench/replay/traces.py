"""Selection of the calls that are replayed: agents, limits, warm-up share, kind of text.

The kind is decided by a rule on the lines of a log, which is printed with every result. The heuristics are
those with which the adaptive draft length is usually chosen: JSON has ``"key":``; code has braces at line
ends, ``def``, ``class``, ``import``, SQL statements or four-space indents; the rest is prose.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.replay.logs import Call, Encode, count_agents, read_calls

#: in place of an agent's name: the agent with the most calls in the log
MOST_FREQUENT: Final = "most-frequent"

UNKNOWN: Final = "unknown"
#: least share of non-empty lines of a kind
_ENOUGH: Final = 0.4
#: characters of the first answers that are classified
_CHARACTERS: Final = 400_000

_JSON: Final = re.compile(r'"[^"\n]{1,80}"\s*:|^\s*[\[{}\]],?\s*$')
_CODE: Final = re.compile(
    r"^(?: {4}|\t)|^\s*(?:def|class|import|from|return|func|fn|function|public|#include|use|let|const|var)\b"
    r"|[{};]\s*$"
    r"|\b(?:SELECT|INSERT|UPDATE|DELETE|CREATE|WITH)\b.*\b(?:FROM|INTO|SET|TABLE|AS)\b",
    re.IGNORECASE,
)

RULE: Final = (
    f"a log is json or code when at least {_ENOUGH:.0%} of its answers' non-empty lines look like it "
    '("key": or a lone bracket; four-space indents, keywords, a line ending in a brace or semicolon, SQL), '
    "json first; otherwise prose. unknown: the log has token ids only"
)


@dataclass(frozen=True, slots=True)
class Selection:
    """What is taken of each log.

    Attributes:
        agents: only these agents, in every log that ``agents_of`` does not name; may contain
            ``most-frequent``.
        agents_of: agents by log name.
        max_tokens: response tokens; the call that reaches the limit is the last one. 0 = no limit.
        max_calls: 0 = no limit.
        train: share of the first calls, 0 <= train < 1, that are the warm-up and not scored.
        shuffle: take the sessions of a log in random order (``seed``); the order within a session is kept.
    """

    agents: tuple[str, ...] = ()
    agents_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    max_tokens: int = 0
    max_calls: int = 0
    train: float = 0.0
    shuffle: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Trace:
    """A log as it is replayed.

    Attributes:
        name: the file's name without its suffixes.
        kind: kind of text, see :func:`kind_of`.
        warmup: calls that are replayed first and not scored.
        calls: calls that are scored, at least one.
        agents: agents of the calls; empty = all.
    """

    name: str
    path: Path
    kind: str
    calls: Sequence[Call]
    warmup: Sequence[Call] = field(default_factory=tuple)
    agents: tuple[str, ...] = ()


def load_trace(path: Path, encode: Encode | None, selection: Selection) -> Trace:
    """Read the selected calls of a log.

    Raises:
        InvalidInputError: the log cannot be read, or no call is left to score.
    """
    name = log_name(path)
    agents = _wanted(path, selection.agents_of.get(name, selection.agents))
    calls = _limited(path, encode, agents, selection)
    if not calls:
        found = count_agents(path)
        whose = f" of {' or '.join(agents)}" if agents else ""
        names = ", ".join(f"{agent or '(unnamed)'} ({n} calls)" for agent, n in sorted(found.items())[:20])
        raise InvalidInputError(
            f"{path} must have a call{whose} with a response",
            got=f"calls of {names}" if names else "an empty log",
        )
    cut = int(len(calls) * selection.train)
    return Trace(name, path, kind_of(c.text for c in calls), calls[cut:], calls[:cut], agents or ())


def load_traces(
    paths: Sequence[Path], training: Sequence[Path], encode: Encode | None, selection: Selection
) -> Iterator[Trace]:
    """Traces of all logs, read one at a time; the calls of ``training`` are part of every warm-up.

    Raises:
        InvalidInputError: see :func:`load_trace`.
    """
    whole = replace(selection, train=0.0)
    training_calls = [call for path in training for call in load_trace(path, encode, whole).calls]
    for path in paths:
        trace = load_trace(path, encode, selection)
        yield replace(trace, warmup=[*training_calls, *trace.warmup])


def log_name(path: Path) -> str:
    """A log's name: the file's name up to its first dot."""
    return path.name.split(".", 1)[0] or path.name


def split_agents(
    wanted: Sequence[str], logs: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Split into agents for all logs, and those written ``LOG=NAME`` by log; ``logs`` names the logs."""
    all_logs: list[str] = []
    by_log: dict[str, tuple[str, ...]] = {}
    for item in wanted:
        log, equals, agent = item.partition("=")
        if equals and log in logs:
            by_log[log] = (*by_log.get(log, ()), agent)
        else:
            all_logs.append(item)
    return tuple(all_logs), by_log


def _wanted(path: Path, chosen: Sequence[str]) -> tuple[str, ...] | None:
    if not chosen:
        return None
    if MOST_FREQUENT not in chosen:
        return tuple(chosen)
    frequent = [agent for agent, _ in count_agents(path).most_common(1)]
    return tuple(dict.fromkeys(a for c in chosen for a in (frequent if c == MOST_FREQUENT else [c])))


def _limited(
    path: Path, encode: Encode | None, agents: tuple[str, ...] | None, selection: Selection
) -> list[Call]:
    calls: list[Call] = []
    tokens = 0
    every = read_calls(path, encode, agents)
    for call in _shuffled(list(every), selection.seed) if selection.shuffle else every:
        calls.append(call)
        tokens += len(call.response)
        enough = selection.max_tokens and tokens >= selection.max_tokens
        if enough or len(calls) == selection.max_calls:
            break
    return calls


def _shuffled(calls: list[Call], seed: int) -> list[Call]:
    sessions: dict[str, list[Call]] = {}
    for number, call in enumerate(calls):
        sessions.setdefault(call.session or f"\0{number}", []).append(call)
    order = list(sessions.values())
    random.Random(seed).shuffle(order)
    return [call for session in order for call in session]


def kind_of(texts: Iterable[str]) -> str:
    """ "json", "code", "prose", or :data:`UNKNOWN` without text. See :data:`RULE`."""
    lines = json = code = seen = 0
    for text in texts:
        for line in text.splitlines():
            if not line.strip():
                continue
            lines += 1
            if _JSON.search(line):
                json += 1
            elif _CODE.search(line):
                code += 1
        seen += len(text)
        if seen >= _CHARACTERS:
            break
    if not lines:
        return UNKNOWN
    if json >= _ENOUGH * lines:
        return "json"
    return "code" if code >= _ENOUGH * lines else "prose"

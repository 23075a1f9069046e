"""Selection of the calls that are replayed: agents, limits, warm-up share."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.replay.kinds import kind_of
from suffixsvc_bench.replay.logs import Call, Encode, count_agents, read_calls

__all__ = ["MOST_FREQUENT", "Selection", "Trace", "load_trace", "load_traces", "log_name", "split_agents"]

#: in place of an agent's name: the agent with the most calls in the log
MOST_FREQUENT: Final = "most-frequent"


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

    Raises:
        InvalidInputError: ``train`` is out of range.
    """

    agents: tuple[str, ...] = ()
    agents_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    max_tokens: int = 0
    max_calls: int = 0
    train: float = 0.0
    shuffle: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.train < 1:
            raise InvalidInputError("train must be in 0 <= train < 1", got=self.train)


@dataclass(frozen=True, slots=True)
class Trace:
    """A log as it is replayed.

    Attributes:
        name: the file's name without its suffixes.
        kind: kind of text, see :mod:`suffixsvc_bench.replay.kinds`.
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

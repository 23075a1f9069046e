"""``suffixsvc stats``: contents and counters of a service, a data folder, or one of its namespaces."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from suffixsvc_cli.base.options import AsJson, Data, Server
from suffixsvc_cli.base.times import lag, position
from suffixsvc_cli.server.backend import opened_backend


def stats(
    namespace: Annotated[str, typer.Argument(help="Path of a namespace; none: all together.")] = "",
    server: Server = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Show contents and counters of a service, a data folder, or one namespace.

    Counters begin at 0 when the service starts. docs/statistics.md explains the fields.

        suffixsvc stats acme/sql --server unix:./suffixsvc.sock
    """
    from suffixsvc.config import validate_namespace
    from suffixsvc.errors import unknown_namespace
    from suffixsvc.index import NamespaceStats

    with opened_backend(server, data) as backend:
        if namespace:
            # an embedded cache would create it
            if validate_namespace(namespace) not in [record.path for record in backend.namespaces()]:
                raise unknown_namespace(namespace)
            answer = asdict(backend.namespace(namespace).stats())
            # a service's answer has fields of the whole service, too, which are 0
            names = [*NamespaceStats.__dataclass_fields__, "followers"]
            found = {name: answer[name] for name in names if name in answer}
        else:
            found = asdict(backend.stats())
    if as_json:
        typer.echo(json.dumps(found))
        return
    for name, value in _lines(found):
        typer.echo(f"{name}\t{value}")


def _lines(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each field, and of the acceptance rate."""
    for name, value in found.items():
        if name in _LISTS:
            what, key, described = _LISTS[name]
            for each in value:
                yield f"{what} {each[key]}", described(each)
        elif name == "last_lsn":
            yield name, position(value)
        elif name == "limit_bytes" and not value:
            yield name, "no limit"
        elif name == "last_published":
            yield name, datetime.fromtimestamp(value, UTC).isoformat(timespec="seconds") if value else "never"
        elif isinstance(value, bool):
            yield name, "yes" if value else "no"
        elif isinstance(value, float):
            yield name, f"{round(value, 3):,}"
        else:
            yield name, f"{value:,}"
        if name == "num_accepted_tokens" and found["num_draft_tokens"]:
            yield "acceptance rate", f"{value / found['num_draft_tokens']:.1%}"


def _held(principal: Mapping[str, Any]) -> str:
    """What a principal holds and may hold, on one line."""

    def of(limit: int) -> str:
        return f" of {limit:,}" if limit else ""

    held = principal["held_bytes"] + principal["session_bytes"]
    parts = [
        f"{principal['outputs']:,}{of(principal['limit_outputs'])} outputs",
        f"{held:,}{of(principal['limit_bytes'])} bytes",
        f"{principal['sessions']:,} sessions",
        f"{principal['evicted_outputs']:,} evicted",
        f"{principal['refused']:,} refused",
    ]
    return ", ".join(parts)


def _matched(probes: Mapping[str, Any]) -> str:
    """How the drafts of a principal are answered, on one line."""
    parts = [
        f"{probes['drafted_tokens']:,} tokens of shared text",
        f"{probes['unanswered_tokens']:,} unanswered",
        f"{max(0.0, probes['expected_matches']):,.1f} expected to match",
        f"{probes['matched_tokens']:,} matched",
        f"{probes['refused_steps']:,} steps refused",
    ]
    return ", ".join(parts)


def _refused(refusals: Mapping[str, Any]) -> str:
    """What a limit of a principal refused, on one line."""
    return f"{refusals['refused']:,} by {refusals['limit']}"


def _described(follower: Mapping[str, Any]) -> str:
    """State of a follower, on one line."""
    parts = [
        follower["description"] or "no description",
        "connected" if follower["connected"] else "not connected",
        f"lag {lag(follower['applied_lsn'], follower['lag'])}",
        f"silent for {follower['silent_seconds']:.1f} s",
        f"{follower['held_bytes']:,} bytes held, {follower['mapped_bytes']:,} mapped",
        f"{len(follower['namespaces']):,} namespaces",
    ]
    if follower["live_lost"]:
        parts.append(f"live text dropped {follower['live_lost']:,} times")
    return ", ".join(parts)


def _task(task: Mapping[str, Any]) -> str:
    """State of a background task, on one line."""
    failed = f", {task['failures']:,} failed" if task["failures"] else ""
    error = f", now failing: {task['last_error']}" if task["failures_in_a_row"] else ""
    ended = "" if task["alive"] else ", not running"
    return f"{task['runs']:,} runs{failed}{error}{ended}"


#: fields that are lists: what their elements are, the field that names one, and the text of one
_LISTS: Final[Mapping[str, tuple[str, str, Callable[[Mapping[str, Any]], str]]]] = {
    "background_tasks": ("task", "name", _task),
    "followers": ("follower", "follower_id", _described),
    "principals": ("principal", "principal", _held),
    "probes": ("drafts of", "principal", _matched),
    "refusals": ("refused", "principal", _refused),
}

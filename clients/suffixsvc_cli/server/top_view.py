"""The view of ``suffixsvc top``, made to fit the width and the height of the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from suffixsvc_cli.base.times import lag, position
from suffixsvc_cli.server.top_report import NamespaceActivity, Report
from suffixsvc_client.protocol.replies import BackgroundTask, FollowerStats

T = TypeVar("T")

#: lines above the tables
_HEADER_LINES: Final = 4
#: a table has a heading and a blank line before it
_TABLE_LINES: Final = 2
#: widths from which further columns are shown
_MEDIUM: Final = 60
_WIDE: Final = 90


def view(report: Report, target: str, width: int, height: int, problem: str = "") -> RenderableType:
    """The state of a service.

    Args:
        target: its address.
        width, height: of the terminal, in characters.
        problem: why there is no newer report; "": this is the newest.
    """
    lines = _HEADER_LINES + bool(problem) + bool(report.store.failure)
    left = height - lines - (3 if report.followers else 2) * _TABLE_LINES
    tasks = sorted(report.background_tasks, key=lambda task: (task.alive, -task.failures_in_a_row, task.name))
    rows, task_rows, follower_rows = _rows(left, (len(report.namespaces), len(tasks), len(report.followers)))
    parts: list[RenderableType] = [_line(text, width) for text in _header(report, target)]
    if report.store.failure:
        parts.append(_line(Text(f"cannot store: {report.store.failure}", style="bold red"), width))
    if problem:
        parts.append(_line(Text(f"no answer: {problem}", style="bold red"), width))
    parts += ["", _namespaces(report.namespaces[:rows], len(report.namespaces), width)]
    if report.followers:
        parts += ["", _followers(report.followers[:follower_rows], len(report.followers), width)]
    parts += ["", _tasks(tasks[:task_rows], len(tasks), width)]
    return Group(*parts)


def _rows(left: int, wanted: Sequence[int]) -> list[int]:
    """Rows of each table: an equal share of the lines ``left``, at least one, and then what others leave."""
    given = [min(want, max(1, left // len(wanted))) for want in wanted]
    for number, want in enumerate(wanted):
        given[number] += max(0, min(want - given[number], left - sum(given)))
    return given


def _line(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    text.no_wrap = True
    return text


def _header(report: Report, target: str) -> list[Text]:
    store, activity = report.store, report.activity
    limit = f" of {decimal(report.limit_bytes)}" if report.limit_bytes else ""
    lost = [
        f"{count:,} {what}"
        for count, what in (
            (report.unkept_sessions, "sessions not stored yet"),
            (report.lost_sessions, "sessions lost"),
            (report.live_text_dropped, "drops of live text"),
            (report.log_lines_dropped, "log lines dropped"),
        )
        if count
    ]
    state = Text.assemble(
        ("store failing" if store.failing else "store ok", "bold red" if store.failing else ""),
        f"  {decimal(store.bytes)}  queue {store.queue}",
        (f"  {', '.join(lost)}" if lost else "", "yellow"),
        f"  last write {position(store.last_lsn)}" if store.last_lsn else "  no write",
    )
    return [
        Text.assemble(("suffixsvc", "bold"), f" {report.version}  {target}"),
        Text(
            f"{_number(activity.steps_per_second)} steps/s  hit {_share(activity.draft_hit_rate)}  "
            f"accepted {_number(activity.accepted_tokens_per_second)}/s "
            f"({_share(activity.acceptance_rate)})  saved {_number(report.saved_seconds_per_second)} s/s"
        ),
        Text(
            f"{report.sessions:,} sessions  {report.outputs:,} outputs  {report.tokens:,} tokens  "
            f"{decimal(report.held_bytes)}{limit}"
        ),
        state,
    ]


def _namespaces(shown: Sequence[NamespaceActivity], total: int, width: int) -> Table:
    return _table(
        f"namespaces ({total:,})",
        [(Text(each.path), each) for each in shown],
        [
            ("steps/s", 0, lambda each: _number(each.activity.steps_per_second)),
            ("hit", 0, lambda each: "off" if each.drafting_off else _share(each.activity.draft_hit_rate)),
            ("accepted/s", _MEDIUM, lambda each: _number(each.activity.accepted_tokens_per_second)),
            ("sessions", _MEDIUM, lambda each: f"{each.sessions:,}"),
            ("outputs", _WIDE, lambda each: f"{each.outputs:,}"),
            ("bytes", _WIDE, lambda each: decimal(each.held_bytes)),
        ],
        width,
    )


def _followers(shown: Sequence[FollowerStats], total: int, width: int) -> Table:
    return _table(
        f"followers ({total:,})",
        [
            (Text(each.description or each.follower_id, style="" if each.connected else "dim"), each)
            for each in shown
        ],
        [
            ("lag", 0, lambda each: lag(each.applied_lsn, each.lag)),
            ("silent", 0, lambda each: f"{each.silent_seconds:.0f} s" if each.connected else "gone"),
            ("unconfirmed", _MEDIUM, lambda each: f"{each.unacknowledged_tokens:,}"),
            ("namespaces", _WIDE, lambda each: f"{len(each.namespaces):,}"),
            ("memory", _WIDE, lambda each: decimal(each.held_bytes)),
        ],
        width,
    )


def _tasks(shown: Sequence[BackgroundTask], total: int, width: int) -> Table:
    now = time.time()

    def name(task: BackgroundTask) -> Text:
        wrong = not task.alive or task.failures_in_a_row
        error = f": {task.last_error}" if task.failures_in_a_row else "" if task.alive else ": not running"
        return Text(task.name + error, style="bold red" if wrong else "")

    return _table(
        f"background tasks ({total:,})",
        [(name(task), task) for task in shown],
        [
            ("runs", 0, lambda task: f"{task.runs:,}"),
            ("failures", _MEDIUM, lambda task: f"{task.failures:,}"),
            ("succeeded", 0, lambda task: _ago(now - task.last_success) if task.last_success else "never"),
        ],
        width,
    )


def _table(
    title: str,
    rows: Sequence[tuple[Text, T]],
    columns: Sequence[tuple[str, int, Callable[[T], str]]],
    width: int,
) -> Table:
    """A table whose first column takes the width that the others leave.

    Args:
        rows: the first cell of each, and what its other cells are made of.
        columns: heading, width of the terminal from which it is shown, and text of a row.
    """
    table = Table(box=None, pad_edge=False, expand=True, header_style="bold", width=width)
    table.add_column(title, ratio=1, no_wrap=True, overflow="ellipsis")
    shown = [(heading, text) for heading, least, text in columns if width >= least]
    for heading, _ in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    for first, row in rows:
        table.add_row(first, *(text(row) for _, text in shown))
    return table


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _ago(seconds: float) -> str:
    return f"{max(0.0, seconds):.0f} s ago"

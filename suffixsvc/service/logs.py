"""structlog for the service: one line an event on stderr, as JSON or for people."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog

from suffixsvc.log_output import StderrLogger

__all__ = ["LogFormat", "configure_logs"]

LogFormat = Literal["auto", "console", "json"]


def configure_logs(style: LogFormat = "auto", *, debug: bool = False) -> None:
    """``auto``: for people when stderr is a terminal, else JSON."""
    people = style == "console" or (style == "auto" and sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=not people),
    ]
    tail: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
        if people
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, *tail],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if debug else logging.INFO),
        logger_factory=StderrLogger,
        cache_logger_on_first_use=False,
    )

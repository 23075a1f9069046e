"""structlog configuration of the service: one line per event on stderr, as JSON or human-readable."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog

from suffixsvc.runtime.log_output import StderrLogger

LogFormat = Literal["auto", "console", "json"]


def configure_logs(style: LogFormat = "auto", *, debug: bool = False) -> None:
    """Configure structlog. ``auto`` is human-readable if stderr is a terminal, else JSON."""
    readable = style == "console" or (style == "auto" and sys.stderr.isatty())
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=not readable),
    ]
    if readable:
        # The default formatter shows the values of variables, tokens among them.
        processors.append(
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        )
    else:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if debug else logging.INFO),
        logger_factory=StderrLogger,
        cache_logger_on_first_use=False,
    )

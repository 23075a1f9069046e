"""Log output of a verb: on stderr, because stdout is the verb's result (text, tables, JSON)."""

from __future__ import annotations

import logging

import structlog

from suffixsvc.runtime.log_output import StderrLogger


def log_to_stderr(level: int = logging.INFO) -> None:
    """Write one line per event of at least this level. ``serve`` configures its own format afterwards."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            # the default formatter shows the values of variables, tokens among them
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=StderrLogger,
        cache_logger_on_first_use=False,
    )

"""``suffixsvc serve``: run the service."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suffixsvc.cli.options import InsecureNetwork
from suffixsvc.config import Limits

if TYPE_CHECKING:
    from suffixsvc.engine import SuffixCache

__all__ = ["serve"]

_LIMITS = Limits()


class LogStyle(StrEnum):
    """How log lines look."""

    auto = "auto"
    console = "console"
    json = "json"


def serve(
    data: Annotated[
        Path, typer.Option(help="Folder that holds what is remembered; created when it is not there.")
    ],
    listen: Annotated[
        list[str],
        typer.Option(help="unix:PATH or HOST:PORT (port 0 takes a free one). May be given more than once."),
    ],
    insecure_network: InsecureNetwork = False,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            help="Write addresses and pid there, as JSON, once the service answers; removed at the end."
        ),
    ] = None,
    log_format: Annotated[
        LogStyle,
        typer.Option(
            help=(
                "auto: for people on a terminal, JSON elsewhere. Where more than 1,000 lines wait for the "
                "reader of stderr, further ones are lost, and counted in a later line."
            )
        ),
    ] = LogStyle.auto,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log at debug level.")] = False,
    max_sessions: Annotated[
        int | None, typer.Option(help="Live sessions at a time.", show_default=str(_LIMITS.max_sessions))
    ] = None,
    max_session_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens of one session: prompt, context and output together.",
            show_default=str(_LIMITS.max_session_tokens),
        ),
    ] = None,
    max_message_mib: Annotated[
        int | None,
        typer.Option(
            help="Size of one gRPC message, in MiB.", show_default=f"{_LIMITS.max_message_bytes >> 20} MiB"
        ),
    ] = None,
    max_store_gib: Annotated[
        int | None,
        typer.Option(
            help="Size the store may grow to, in GiB.", show_default=f"{_LIMITS.max_store_bytes >> 30} GiB"
        ),
    ] = None,
    max_cache_gib: Annotated[
        int | None,
        typer.Option(
            help="What all outputs, in log and index, and live sessions may take together, in GiB; then a "
            "namespace that writes forgets its own outputs, the longest unused first, and what does not fit "
            "is refused.",
            show_default="no limit",
        ),
    ] = None,
    policies: Annotated[
        Path | None,
        typer.Option(help="TOML file: bytes, time to live and pinning of namespaces (docs/limits.md)."),
    ] = None,
    preload: Annotated[
        str | None,
        typer.Option(
            help="Recipes that every session of their tokenizer drafts from: sql,json,code, or folders."
        ),
    ] = None,
    settings: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="Settings of a driver (docs/generate.md): no draft is longer than its [layers.suffix] says.",
        ),
    ] = None,
    max_streams: Annotated[
        int, typer.Option(help="Streams at a time; a client process uses one.", min=1)
    ] = 512,
    session_idle_seconds: Annotated[
        float | None,
        typer.Option(
            help="A session idle for so many seconds is committed as incomplete and closed.",
            show_default=f"{_LIMITS.session_idle_seconds:g} s",
        ),
    ] = None,
    expiry_grace_seconds: Annotated[
        float | None,
        typer.Option(
            help="Outputs whose time to live passed only while no service ran stay for so many seconds after "
            "the start, in case the clock is wrong.",
            show_default=f"{_LIMITS.expiry_grace_seconds:g} s",
        ),
    ] = None,
) -> None:
    """Run the service: one shared, durable suffix cache.

    SIGTERM or Ctrl-C drains it: live sessions are committed as incomplete, the store is closed, exit code 0.
    """
    # heavy parts load only when the verb runs, so that --help answers at once
    from suffixsvc.errors import InvalidConfigError
    from suffixsvc.policies import Policies
    from suffixsvc.service.run import ServeConfig, serve_until_signal

    for option, value in (
        ("--max-sessions", max_sessions),
        ("--max-session-tokens", max_session_tokens),
        ("--max-message-mib", max_message_mib),
        ("--max-store-gib", max_store_gib),
        ("--max-cache-gib", max_cache_gib),
        ("--session-idle-seconds", session_idle_seconds),
        ("--expiry-grace-seconds", expiry_grace_seconds),
    ):
        if value is not None and not 0 < value < math.inf:
            raise InvalidConfigError(f"{option} must be a positive number", got=value)
    told: dict[str, Any] = {
        "max_sessions": max_sessions,
        "max_session_tokens": max_session_tokens,
        "max_message_bytes": max_message_mib and max_message_mib << 20,
        "max_store_bytes": max_store_gib and max_store_gib << 30,
        "max_cache_bytes": max_cache_gib and max_cache_gib << 30,
        "session_idle_seconds": session_idle_seconds,
        "expiry_grace_seconds": expiry_grace_seconds,
        "max_draft_tokens": settings and _max_draft_tokens(settings),
    }
    limits = replace(_LIMITS, **{name: value for name, value in told.items() if value is not None})
    serve_until_signal(
        ServeConfig(
            data=data,
            listen=tuple(listen),
            insecure_network=insecure_network,
            ready_file=ready_file,
            log_format=log_format.value,
            debug=verbose,
            max_streams=max_streams,
            limits=limits,
            policies=Policies() if policies is None else Policies.load(policies),
            preload=_preload(preload),
        )
    )


def _max_draft_tokens(settings: Path) -> int:
    """All of a driver's settings that concerns a service: every other one comes with a session, or is the
    target's own."""
    from suffixsvc_driver.settings_file import read_settings

    return read_settings(settings).suffix.max_draft_tokens


def _preload(names: str | None) -> Callable[[SuffixCache], Sequence[str]] | None:
    if not names:
        return None
    from suffixsvc_caches.recipes import find_recipes, preload

    wanted = [name.strip() for name in names.split(",") if name.strip()]
    find_recipes(wanted)  # what is wrong is told before anything is opened
    return lambda cache: preload(cache, wanted)

"""``suffixsvc serve``: the service."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suffixsvc.config import Limits
from suffixsvc_cli.base.options import InsecureNetwork

if TYPE_CHECKING:
    from suffixsvc.engine import SuffixCache

__all__ = ["serve"]

_LIMITS = Limits()


class LogStyle(StrEnum):
    """Format of log lines."""

    auto = "auto"
    console = "console"
    json = "json"


def serve(
    data: Annotated[Path, typer.Option(help="Data folder; created if missing.")],
    listen: Annotated[
        list[str],
        typer.Option(help="unix:PATH or HOST:PORT (port 0 takes a free one). Repeatable."),
    ],
    insecure_network: InsecureNetwork = False,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            help="File that is written when the service answers, with addresses and pid as JSON; removed "
            "at the end."
        ),
    ] = None,
    log_format: Annotated[
        LogStyle,
        typer.Option(
            help=(
                "auto: console on a terminal, json elsewhere. If more than 1,000 lines wait for the reader "
                "of stderr, further ones are dropped and counted in a later line."
            )
        ),
    ] = LogStyle.auto,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log at debug level.")] = False,
    max_sessions: Annotated[
        int | None, typer.Option(help="Maximum open sessions.", show_default=str(_LIMITS.max_sessions))
    ] = None,
    max_session_tokens: Annotated[
        int | None,
        typer.Option(
            help="Maximum tokens of a session: prompt, context and output together.",
            show_default=str(_LIMITS.max_session_tokens),
        ),
    ] = None,
    max_message_mib: Annotated[
        int | None,
        typer.Option(
            help="Maximum size of a gRPC message, in MiB.",
            show_default=f"{_LIMITS.max_message_bytes >> 20} MiB",
        ),
    ] = None,
    max_store_gib: Annotated[
        int | None,
        typer.Option(
            help="Maximum size of the store, in GiB.", show_default=f"{_LIMITS.max_store_bytes >> 30} GiB"
        ),
    ] = None,
    max_cache_gib: Annotated[
        int | None,
        typer.Option(
            help="Maximum size of all outputs (in log and index) and open sessions together, in GiB. When "
            "the limit is reached, a write evicts outputs of its own namespace, least recently used "
            "first; a write that still does not fit is refused.",
            show_default="no limit",
        ),
    ] = None,
    policies: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with byte limits, time to live and pinning of namespaces (docs/limits.md)."
        ),
    ] = None,
    preload: Annotated[
        str | None,
        typer.Option(
            help="Recipes from which every session of their tokenizer drafts: sql,json,code, or folders."
        ),
    ] = None,
    settings: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="Settings of a driver (docs/generate.md): [layers.suffix] limits the draft length.",
        ),
    ] = None,
    max_streams: Annotated[
        int, typer.Option(help="Maximum concurrent streams; a client process uses one.", min=1)
    ] = 512,
    session_idle_seconds: Annotated[
        float | None,
        typer.Option(
            help="Seconds after which an idle session is committed as incomplete and closed.",
            show_default=f"{_LIMITS.session_idle_seconds:g} s",
        ),
    ] = None,
    expiry_grace_seconds: Annotated[
        float | None,
        typer.Option(
            help="Seconds after the start during which outputs are kept that expired while no service ran, "
            "in case the clock is wrong.",
            show_default=f"{_LIMITS.expiry_grace_seconds:g} s",
        ),
    ] = None,
) -> None:
    """Run the service: one shared, durable suffix cache.

    SIGTERM or Ctrl-C drains it: open sessions are committed as incomplete, the store is closed, exit code 0.
    Before the service is ready (recovery, --preload) SIGTERM ends it at once.
    """
    # imported here so that --help is fast
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
    given: dict[str, Any] = {
        "max_sessions": max_sessions,
        "max_session_tokens": max_session_tokens,
        "max_message_bytes": max_message_mib and max_message_mib << 20,
        "max_store_bytes": max_store_gib and max_store_gib << 30,
        "max_cache_bytes": max_cache_gib and max_cache_gib << 30,
        "session_idle_seconds": session_idle_seconds,
        "expiry_grace_seconds": expiry_grace_seconds,
        "max_draft_tokens": settings and _max_draft_tokens(settings),
    }
    limits = replace(_LIMITS, **{name: value for name, value in given.items() if value is not None})
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
    """The only driver setting that concerns a service: the others come with a session or are the target's."""
    from suffixsvc_driver.profile.settings_file import read_settings

    return read_settings(settings).suffix.max_draft_tokens


def _preload(names: str | None) -> Callable[[SuffixCache], Sequence[str]] | None:
    if not names:
        return None
    from suffixsvc_caches.recipes import find_recipes, preload

    wanted = [name.strip() for name in names.split(",") if name.strip()]
    find_recipes(wanted)  # invalid names fail before anything is opened
    return lambda cache: preload(cache, wanted)

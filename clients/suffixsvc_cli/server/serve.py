"""``suffixsvc serve``: the service."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from suffixsvc.config import Limits
from suffixsvc.errors import InvalidConfigError
from suffixsvc.verb_options import option, with_options
from suffixsvc_cli.base.configuration import ConfigFile
from suffixsvc_cli.base.options import LOG_FORMAT, OPEN_TO_ALL, LogStyle, SocketOptions, access_option

if TYPE_CHECKING:
    from suffixsvc.engine import SuffixCache

_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions(SocketOptions):
    """The command line.

    Raises:
        InvalidConfigError: a limit is not positive.
    """

    data: Path = option(help="Data folder; created if missing.")
    listen: tuple[str, ...] = option(help="unix:PATH or HOST:PORT (port 0 takes a free one). Repeatable.")
    migrate: bool = option(
        False,
        "--migrate",
        help="Migrate a data folder of an earlier release, after a backup (docs/upgrading.md). Without this "
        "option such a folder is refused.",
    )
    ready_file: Path | None = option(
        None,
        help="File that is written when the service answers, with addresses and pid as JSON; removed at the "
        "end.",
    )
    log_format: LogStyle = option(LogStyle.auto, help=LOG_FORMAT)
    verbose: bool = option(False, "--verbose", "-v", help="Log at debug level.")
    max_sessions: int | None = option(
        None, help="Maximum open sessions.", show_default=str(_LIMITS.max_sessions)
    )
    max_session_tokens: int | None = option(
        None,
        help="Maximum tokens of a session: prompt, context and output together.",
        show_default=str(_LIMITS.max_session_tokens),
    )
    max_message_mib: int | None = option(
        None,
        help="Maximum size of a gRPC message, in MiB.",
        show_default=f"{_LIMITS.max_message_bytes >> 20} MiB",
    )
    max_store_gib: int | None = option(
        None,
        help="Maximum size of the store, in GiB.",
        show_default=f"{_LIMITS.max_store_bytes >> 30} GiB",
    )
    max_cache_gib: int | None = option(
        None,
        help="Maximum size of all outputs (in log and index) and open sessions together, in GiB. When the "
        "limit is reached, a write evicts outputs of its own namespace, least recently used first; a write "
        "that still does not fit is refused.",
        show_default="no limit",
    )
    policies: Path | None = access_option(
        None,
        metavar="FILE",
        help="TOML file with limits of namespaces (docs/limits.md) and rights of principals "
        "(docs/security.md). It is read again when it changes.",
    )
    tokens: Path | None = access_option(
        None,
        metavar="FILE",
        help="File of tokens, which `suffixsvc token` writes; clients must then have one. It is read again "
        "when it changes.",
        show_default="tokens.toml in the data folder",
    )
    open_to_all: bool = access_option(False, "--open-to-all", help=OPEN_TO_ALL)
    preload: str | None = option(
        None, help="Recipes from which every session of their tokenizer drafts: sql,json,code, or folders."
    )
    settings: Path | None = option(
        None,
        metavar="FILE.toml",
        help="Settings of a driver (docs/generate.md): [layers.suffix] limits the draft length.",
    )
    max_streams: int = option(512, min=1, help="Maximum concurrent streams; a client process uses one.")
    max_followers: int = option(
        64,
        min=0,
        help="Maximum followers, processes that keep a copy of namespaces and draft by themselves; 0 = none.",
    )
    metrics: str | None = option(
        None,
        metavar="HOST:PORT",
        help="Serve metrics for Prometheus at http://HOST:PORT/metrics (docs/metrics.md).",
    )
    metrics_namespaces: int = option(
        200,
        min=1,
        help="Namespaces with metrics of their own: the busiest. The others are summed.",
    )
    session_idle_seconds: float | None = option(
        None,
        help="Seconds after which an idle session is committed as incomplete and closed.",
        show_default=f"{_LIMITS.session_idle_seconds:g} s",
    )
    expiry_grace_seconds: float | None = option(
        None,
        help="Seconds after the start during which outputs are kept that expired while no service ran, in "
        "case the clock is wrong.",
        show_default=f"{_LIMITS.expiry_grace_seconds:g} s",
    )

    def limits(self) -> Limits:
        """The default limits, overridden by the options."""
        given: dict[str, Any] = {}
        for name, field, shift in (
            ("max_sessions", "max_sessions", 0),
            ("max_session_tokens", "max_session_tokens", 0),
            ("max_message_mib", "max_message_bytes", 20),
            ("max_store_gib", "max_store_bytes", 30),
            ("max_cache_gib", "max_cache_bytes", 30),
            ("session_idle_seconds", "session_idle_seconds", 0),
            ("expiry_grace_seconds", "expiry_grace_seconds", 0),
        ):
            value = getattr(self, name)
            if value is None:
                continue
            if not 0 < value < math.inf:
                raise InvalidConfigError(f"--{name.replace('_', '-')} must be a positive number", got=value)
            given[field] = value << shift if shift else value
        if self.settings is not None:
            from suffixsvc_driver.profile.settings_file import read_settings

            # the only driver setting of a service: the others come with a session or are the target's
            given["max_draft_tokens"] = read_settings(self.settings).suffix.max_draft_tokens
        return replace(_LIMITS, **given)


@with_options
def serve(options: ServeOptions, config: ConfigFile = None) -> None:
    """Run the service: one shared, durable suffix cache.

    SIGTERM or Ctrl-C drains it: open sessions are committed as incomplete, the store is closed, exit code 0.
    Before the service listens (recovery, --preload) SIGTERM ends it at once, and Ctrl-C after closing the
    cache.
    """
    del config  # read before the other options
    # imported here so that --help is fast
    from suffixsvc.service.run import ServeConfig, serve_until_signal

    serve_until_signal(
        ServeConfig(
            data=options.data,
            listen=options.listen,
            insecure_network=options.insecure_network,
            socket_mode=options.socket_mode.bits,
            tls=options.tls(),
            tokens=options.tokens,
            policies=options.policies,
            open_to_all=options.open_to_all,
            ready_file=options.ready_file,
            log_format=options.log_format.value,
            debug=options.verbose,
            max_streams=options.max_streams,
            max_followers=options.max_followers,
            limits=options.limits(),
            migrate=options.migrate,
            metrics=options.metrics,
            metrics_namespaces=options.metrics_namespaces,
            preload=_preload(options.preload),
        )
    )


def _preload(names: str | None) -> Callable[[SuffixCache], Sequence[str]] | None:
    if not names:
        return None
    from suffixsvc_caches.recipes import find_recipes, preload

    wanted = [name.strip() for name in names.split(",") if name.strip()]
    find_recipes(wanted)  # invalid names fail before anything is opened
    return lambda cache: preload(cache, wanted)

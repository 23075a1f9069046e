"""Adapter settings from an engine's configuration or the environment, and the cache that they name.

Engines construct their drafters themselves and pass nothing but their own configuration. Our settings are
therefore a part of it (vLLM: ``additional_config``), or variables ``SUFFIXSVC_ADAPTER_NAME``:

    SUFFIXSVC_ADAPTER_TARGET=unix:/run/suffixsvc.sock   a service, or
    SUFFIXSVC_ADAPTER_DATA=/var/lib/suffixsvc           an engine in this process, with a folder;
                                                        with neither: an engine in memory
    SUFFIXSVC_ADAPTER_NAMESPACE=acme/qwen2.5-coder      one per model and group of readers
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from suffixsvc.config import validate_namespace
from suffixsvc.errors import InvalidConfigError
from suffixsvc_adapters.session_tracker import SessionTracker
from suffixsvc_adapters.tracker_types import TrackerConfig

__all__ = ["PREFIX", "AdapterSettings", "open_tracker", "read_settings"]

PREFIX: Final = "SUFFIXSVC_ADAPTER_"


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """Which cache to draft from, and how. A value of None leaves the adapter's own.

    Attributes:
        target: ``unix:PATH`` or ``HOST:PORT`` of a service.
        data: folder of an embedded engine; one process at a time.
        namespace: path of the namespace to write to and draft from.
        tokenizer: fingerprint of the tokenizer; a namespace of another one is refused.
        reads: further namespaces to draft from; in the environment separated by commas.
        step_timeout_s: time that a service may take in a decode step.
        verify_cost, max_draft_tokens, max_sequences, idle_seconds: see :class:`TrackerConfig`.

    Raises:
        InvalidConfigError: both target and data, or step_timeout_s without a target.
        InvalidNamespaceError: a malformed namespace.
    """

    target: str = ""
    data: str = ""
    namespace: str = "adapters"
    tokenizer: str = ""
    reads: tuple[str, ...] = ()
    step_timeout_s: float | None = None
    verify_cost: float | None = None
    max_draft_tokens: int | None = None
    max_sequences: int | None = None
    idle_seconds: float | None = None

    def __post_init__(self) -> None:
        validate_namespace(self.namespace)
        if self.target and self.data:
            raise InvalidConfigError(
                "target and data must not both be set",
                got=f"target {self.target!r} and data {self.data!r}",
                remedy="Name the folder to the service (suffixsvc serve --data), and the service here.",
            )
        if self.step_timeout_s is not None and not self.target:
            raise InvalidConfigError(
                "step_timeout_s must only be set together with target", got=self.step_timeout_s
            )

    def override(self, config: TrackerConfig) -> TrackerConfig:
        """Return the adapter's configuration with the values that are set here."""
        names = ("verify_cost", "max_draft_tokens", "max_sequences", "idle_seconds")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return replace(config, **given, reads=self.reads or config.reads)


def read_settings(
    given: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
) -> AdapterSettings:
    """Read settings from the environment; values of an engine's configuration take precedence.

    Args:
        given: the part of an engine's configuration that is ours.
        environ: the environment.

    Raises:
        InvalidConfigError: an unknown setting, a value of another type, or both target and data.
        InvalidNamespaceError: a malformed namespace.
    """
    if given is not None and not isinstance(given, Mapping):
        raise InvalidConfigError("settings must be a mapping", got=repr(given)[:80])
    variables = {name.removeprefix(PREFIX).lower(): name for name in environ if name.startswith(PREFIX)}
    given = given or {}
    for key in (*variables, *given):
        if key not in _KINDS:
            raise InvalidConfigError(
                f"unknown setting {key!r}",
                expected=f"one of {', '.join(_KINDS)}",
                got=variables.get(key, key),
            )
    values = {key: _parsed(key, environ[name], name) for key, name in variables.items()}
    values |= {key: _validated(key, value) for key, value in given.items()}
    return AdapterSettings(**values)


def open_tracker(
    settings: AdapterSettings,
    config: TrackerConfig,
    is_over: Callable[[Hashable], bool | None] | None = None,
) -> SessionTracker:
    """Open a tracker on the cache that the settings name; closing it closes the cache.

    A service that is not reachable yet is not an error: drafts are empty until it is.

    Args:
        config: the adapter's own; the settings override it.
        is_over: see :class:`SessionTracker`.

    Raises:
        StoreError: the folder cannot be used.
        TokenizerMismatchError: the namespace holds another tokenizer's tokens.
    """
    config = settings.override(config)
    fingerprint = settings.tokenizer or None
    if settings.target:
        from suffixsvc_client import SuffixClient  # noqa: PLC0415 - loads grpc, which a folder does not need

        client = SuffixClient(settings.target, step_timeout_s=settings.step_timeout_s)
        return SessionTracker(
            client.namespace(settings.namespace, fingerprint),
            config,
            step_many=client.step_many,
            on_close=client.close,
            is_over=is_over,
        )
    from suffixsvc import SuffixCache  # noqa: PLC0415 - loads the native core and LMDB

    cache = SuffixCache(settings.data or None)
    try:
        namespace = cache.namespace(settings.namespace, fingerprint)
        return SessionTracker(namespace, config, on_close=cache.close, is_over=is_over)
    except BaseException:
        cache.close()
        raise


#: setting -> type of its value
_KINDS: Final[dict[str, type]] = {
    "target": str,
    "data": str,
    "namespace": str,
    "tokenizer": str,
    "reads": tuple,
    "step_timeout_s": float,
    "verify_cost": float,
    "max_draft_tokens": int,
    "max_sequences": int,
    "idle_seconds": float,
}
_EXPECTED: Final = {str: "a string", tuple: "a list of namespaces", float: "a number", int: "an int"}


def _parsed(key: str, text: str, name: str) -> Any:
    kind = _KINDS[key]
    if kind is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        return kind(text)
    except ValueError:
        raise InvalidConfigError(f"{name} must be {_EXPECTED[kind]}", got=repr(text)[:80]) from None


def _validated(key: str, value: Any) -> Any:
    kind = _KINDS[key]
    if kind is tuple:
        valid = isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value)
    else:
        valid = isinstance(value, (float, int) if kind is float else kind) and not isinstance(value, bool)
    if not valid:
        raise InvalidConfigError(f"{key} must be {_EXPECTED[kind]}", got=repr(value)[:80])
    return tuple(value) if kind is tuple else value

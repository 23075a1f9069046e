"""Which suffix cache an engine drafts from, as its configuration or the environment says.

Engines make their drafters themselves and hand over nothing but their own configuration. So what is ours
stands in a part of it (vLLM: ``additional_config``), or in variables ``SUFFIXSVC_ADAPTER_NAME``:

    SUFFIXSVC_ADAPTER_TARGET=unix:/run/suffixsvc.sock   a service, or
    SUFFIXSVC_ADAPTER_DATA=/var/lib/suffixsvc           an engine in this process, with a folder;
                                                        neither: one that forgets when the process ends
    SUFFIXSVC_ADAPTER_NAMESPACE=acme/qwen2.5-coder      one per model and circle of readers
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from suffixsvc.config import validate_namespace
from suffixsvc.errors import InvalidConfigError
from suffixsvc_driver.adapters.session_tracker import SessionTracker
from suffixsvc_driver.adapters.tracker_types import TrackerConfig

__all__ = ["PREFIX", "AdapterSettings", "open_tracker", "read_settings"]

PREFIX: Final = "SUFFIXSVC_ADAPTER_"


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """Where to draft from and how. What is None is left to the adapter.

    Attributes:
        target: ``unix:PATH`` or ``HOST:PORT`` of a service.
        data: folder of an embedded engine; one process at a time.
        namespace: path of the namespace to write to and draft from.
        tokenizer: fingerprint of the tokenizer; another one is refused.
        reads: further namespaces to draft from; in the environment separated by commas.
        step_timeout_s: what a service may cost a decode step.
        verify_cost, max_draft_tokens, max_sequences, idle_seconds: see :class:`TrackerConfig`.
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
                "a service and a folder cannot both be drafted from",
                expected="target or data",
                got=f"target {self.target!r} and data {self.data!r}",
                remedy="Name the folder to the service (suffixsvc serve --data), and the service here.",
            )
        if self.step_timeout_s is not None and not self.target:
            raise InvalidConfigError("step_timeout_s is of a service", expected="target as well", got="none")

    def over(self, config: TrackerConfig) -> TrackerConfig:
        """The adapter's own configuration with what was set here instead."""
        names = ("verify_cost", "max_draft_tokens", "max_sequences", "idle_seconds")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return replace(config, **given, reads=self.reads or config.reads)


def read_settings(
    given: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
) -> AdapterSettings:
    """Settings from the environment, with what an engine's configuration says instead.

    Raises:
        InvalidConfigError: a name that is no setting, a value of another type, or both target and data.
        InvalidNamespaceError.
    """
    if given is not None and not isinstance(given, Mapping):
        raise InvalidConfigError("settings are no mapping", expected="names and values", got=repr(given)[:80])
    told = {name.removeprefix(PREFIX).lower(): name for name in environ if name.startswith(PREFIX)}
    given = given or {}
    for key in (*told, *given):
        if key not in _KINDS:
            raise InvalidConfigError(
                f"there is no setting {key!r}", expected=f"one of {', '.join(_KINDS)}", got=told.get(key, key)
            )
    values = {key: _read(key, environ[name], name) for key, name in told.items()}
    values |= {key: _checked(key, value) for key, value in given.items()}
    return AdapterSettings(**values)


def open_tracker(
    settings: AdapterSettings,
    config: TrackerConfig,
    is_over: Callable[[Hashable], bool | None] | None = None,
) -> SessionTracker:
    """A tracker over the cache that the settings name; closing it closes the cache.

    Args:
        config: the adapter's own; what the settings say wins.
        is_over: see :class:`SessionTracker`.

    Raises:
        StoreError: the folder cannot be used. TokenizerMismatchError. A service that is not there yet is no
        error: drafts are empty until it is.
    """
    config = settings.over(config)
    fingerprint = settings.tokenizer or None
    if settings.target:
        from suffixsvc_client import SuffixClient  # noqa: PLC0415 - brings grpc, which the other way does not need

        client = SuffixClient(settings.target, step_timeout_s=settings.step_timeout_s)
        return SessionTracker(
            client.namespace(settings.namespace, fingerprint),
            config,
            step_many=client.step_many,
            on_close=client.close,
            is_over=is_over,
        )
    from suffixsvc import SuffixCache  # noqa: PLC0415 - brings the native core and LMDB

    cache = SuffixCache(settings.data or None)
    try:
        namespace = cache.namespace(settings.namespace, fingerprint)
        return SessionTracker(namespace, config, on_close=cache.close, is_over=is_over)
    except BaseException:
        cache.close()
        raise


#: what each setting is
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


def _read(key: str, text: str, name: str) -> Any:
    kind = _KINDS[key]
    if kind is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        return kind(text)
    except ValueError:
        raise InvalidConfigError(
            f"{name} makes no sense", expected=_EXPECTED[kind], got=repr(text)[:80]
        ) from None


def _checked(key: str, value: Any) -> Any:
    kind = _KINDS[key]
    if kind is tuple:
        right = isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value)
    else:
        right = isinstance(value, (float, int) if kind is float else kind) and not isinstance(value, bool)
    if not right:
        raise InvalidConfigError(f"{key} makes no sense", expected=_EXPECTED[kind], got=repr(value)[:80])
    return tuple(value) if kind is tuple else value

"""Adapter settings from an engine's configuration or the environment, and the cache that they name.

Engines construct their drafters themselves and pass nothing but their own configuration. Our settings are
therefore a part of it (vLLM: ``additional_config``), or variables ``SUFFIXSVC_ADAPTER_NAME``:

    SUFFIXSVC_ADAPTER_TARGET=unix:/run/suffixsvc.sock   a service, or
    SUFFIXSVC_ADAPTER_DATA=/var/lib/suffixsvc           an engine in this process, with a folder;
                                                        with neither: an engine in memory
    SUFFIXSVC_ADAPTER_MODE=auto                         who drafts from a service's outputs: this process
                                                        (follow), the service (remote), or as it allows
    SUFFIXSVC_ADAPTER_NAMESPACE=acme/qwen2.5-coder      one per model and group of readers
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from suffixsvc.config import validate_mode, validate_namespace
from suffixsvc.errors import InvalidConfigError
from suffixsvc.types import Backend
from suffixsvc_adapters.tracking.session_tracker import SessionTracker, StepMany
from suffixsvc_adapters.tracking.tracker_types import TrackerConfig

PREFIX: Final = "SUFFIXSVC_ADAPTER_"


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """Which cache to draft from, and how. A value of None leaves the adapter's own.

    Attributes:
        target: ``unix:PATH`` or ``HOST:PORT`` of a service.
        mode: "auto": drafts are taken in this process, from copies of the namespaces, where the service
            allows that, and by the service otherwise. "follow": an error where it does not allow it.
            "remote": by the service.
        data: folder of an embedded engine; one process at a time.
        namespace: path of the namespace to write to and draft from.
        tokenizer: fingerprint of the tokenizer; a namespace of another one is refused.
        reads: further namespaces to draft from; in the environment separated by commas.
        step_timeout_s: time that a service may take in a decode step, where it drafts.
        verify_cost, max_draft_tokens, max_sequences, idle_seconds: see :class:`TrackerConfig` and
            :meth:`override`.

    Raises:
        InvalidConfigError: both target and data, step_timeout_s or mode without a target, or another mode.
        InvalidNamespaceError: a malformed namespace.
    """

    target: str = ""
    mode: str | None = None
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
        if self.mode is not None:
            validate_mode(self.mode)
        for name, value in (("step_timeout_s", self.step_timeout_s), ("mode", self.mode)):
            if value is not None and not self.target:
                raise InvalidConfigError(f"{name} must only be set together with target", got=value)

    def override(self, config: TrackerConfig) -> TrackerConfig:
        """Return the adapter's configuration with the values that are set here.

        ``max_draft_tokens`` can only lower the adapter's, which is what the engine can verify.
        """
        most, own = config.max_draft_tokens, self.max_draft_tokens
        given = {each.name: getattr(self, each.name) for each in fields(self) if hasattr(config, each.name)}
        given["max_draft_tokens"] = most if own is None else min(most, own)
        return replace(config, **{name: value for name, value in given.items() if value not in (None, ())})


def read_settings(
    given: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
) -> AdapterSettings:
    """Read settings from the environment; values of an engine's configuration take precedence.

    Args:
        given: the part of an engine's configuration that is ours.
        environ: the environment.

    Raises:
        InvalidConfigError: an unknown setting, a value of another type, a malformed namespace, or both target
            and data.
    """
    from suffixsvc.settings import read_mapping  # noqa: PLC0415 - pydantic is slow to load

    if given is not None and not isinstance(given, Mapping):
        raise InvalidConfigError("settings must be a mapping", got=repr(given)[:80])
    variables = sorted(name for name in environ if name.startswith(PREFIX))
    values = {name.removeprefix(PREFIX).lower(): environ[name] for name in variables}
    parsed = {key: _parsed(key, text) for key, text in values.items()}
    what = f"settings with {', '.join(variables)}" if variables else "settings"
    return read_mapping(AdapterSettings, {**parsed, **(given or {})}, what)


def _parsed(key: str, text: str) -> object:
    """The value of a variable; the text itself if it is not of the setting's type."""
    kind = AdapterSettings.__annotations__.get(key, "")
    if kind.startswith("tuple"):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        return {"int | None": int, "float | None": float}.get(kind, str)(text)
    except ValueError:
        return text


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
        SuffixError: with the mode "follow", why the service does not let this process follow.
    """
    config = settings.override(config)
    backend: Backend
    step_many: StepMany | None = None
    if settings.target:
        backend, step_many = _connected(settings)
    else:
        from suffixsvc import SuffixCache  # noqa: PLC0415 - loads the native core and LMDB

        backend = SuffixCache(settings.data or None)
    try:
        namespace = backend.namespace(settings.namespace, settings.tokenizer or None)
        return SessionTracker(namespace, config, step_many=step_many, on_close=backend.close, is_over=is_over)
    except BaseException:
        backend.close()
        raise


def _connected(settings: AdapterSettings) -> tuple[Backend, StepMany | None]:
    """The backend of a service, and its batched step where the service drafts."""
    # loads grpc, which a folder does not need
    from suffixsvc_client import ClientConfig, SuffixClient  # noqa: PLC0415
    from suffixsvc_follower import FollowerConfig, connect  # noqa: PLC0415

    given = settings.step_timeout_s
    config = FollowerConfig(ClientConfig() if given is None else ClientConfig(step_timeout_s=given))
    namespaces = [(path, settings.tokenizer) for path in (settings.namespace, *settings.reads)]
    backend = connect(settings.target, namespaces, validate_mode(settings.mode or "auto"), config)
    return backend, backend.step_many if isinstance(backend, SuffixClient) else None

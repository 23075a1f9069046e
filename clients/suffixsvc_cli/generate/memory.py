"""Stored outputs of ``suffixsvc generate``: sessions of an embedded engine, a follower or a client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from suffixsvc.config import MAX_NAMESPACE_BYTES, validate_mode
from suffixsvc.errors import (
    LimitExceededError,
    ServiceError,
    ServiceUnavailableError,
    StoreError,
    StoreLockedError,
    TokenizerMismatchError,
    UnknownNamespaceError,
)
from suffixsvc.types import Backend, BackendNamespace, BackendSession
from suffixsvc_cli.generate.options import Options

if TYPE_CHECKING:
    from suffixsvc.engine import SuffixCache
    from suffixsvc_client import SuffixClient
    from suffixsvc_follower import Follower

#: bounds of the client's step timeout, seconds; between them it is the duration of a plain step
_STEP_TIMEOUT_S: Final = (0.005, 0.05)
_CALL_TIMEOUT_S: Final = 10.0
#: time that a follower may take to copy the namespace before the first token
_COPY_TIMEOUT_S: Final = 5.0

Notify = Callable[[str], None]


class Memory:
    """The session of a chat over all its turns. Not thread-safe.

    Args:
        namespace: namespace of the session.
        commit: store what is written, and let others draft from it meanwhile.
        notify: called with failures at the end, which are not errors because the text is complete.
    """

    def __init__(self, namespace: BackendNamespace, *, commit: bool, notify: Notify) -> None:
        self._namespace = namespace
        self._commit = commit
        self._notify = notify
        self._session: BackendSession | None = None
        #: contents of the session: the prompt of the last turn, and its answer
        self._token_ids: list[int] = []
        self._has_output = False

    def begin(self, prompt_ids: Sequence[int]) -> BackendSession | None:
        """A session with exactly this prompt.

        The session of the previous turn is continued if the prompt extends it; otherwise a new one is opened.
        None, with a notification, if the store has no space for a session, or the service would have to draft
        for one whose text it must not get.

        Raises:
            SuffixError: ``open_session`` failed permanently, for example with another tokenizer.
        """
        prompt = list(prompt_ids)
        if self._session is not None and prompt[: len(self._token_ids)] == self._token_ids:
            self._session.append_context(prompt[len(self._token_ids) :])
        else:
            self.end()
            try:
                self._session = self._namespace.open_session(
                    prompt, labels={"agent": "generate"}, private=not self._commit
                )
            except (LimitExceededError, ServiceUnavailableError) as error:
                self._notify(f"outputs are not stored: {error}")
        self._token_ids = prompt
        return self._session

    def record_output(self, token_ids: Sequence[int]) -> None:
        """Record tokens that the model wrote and the session has received."""
        self._token_ids.extend(token_ids)
        self._has_output = self._session is not None

    def end(self) -> None:
        """Close the session and store its output if ``commit`` is set. Idempotent."""
        session, self._session = self._session, None
        if session is None:
            return
        commit, self._has_output = self._commit and self._has_output, False
        try:
            session.close(commit=commit)
        except (ServiceError, StoreError, LimitExceededError, UnknownNamespaceError) as error:
            if commit:
                self._notify(f"the output is not stored: {error}")


def namespace_of(model: Path) -> str:
    """Default namespace of a model: its file's name."""
    name = "".join(c if c.isprintable() and not c.isspace() else "-" for c in model.stem)
    return name.encode()[:MAX_NAMESPACE_BYTES].decode(errors="ignore").strip(".") or "model"


@contextmanager
def open_memory(
    options: Options, namespace: str, fingerprint: str, step_seconds: float, notify: Notify
) -> Iterator[Memory]:
    """Open the store that the options name; the output is stored at the end of the block, also after an
    error.

    Args:
        fingerprint: of the target's tokenizer.
        step_seconds: duration of a plain step of the target; 0 if unknown.

    Raises:
        StoreLockedError: another process has the data folder open.
        StoreError: the data folder cannot be used.
        TokenizerMismatchError: the namespace or a recipe is of another tokenizer.
        InvalidConfigError: a recipe is unknown.
    """
    with ExitStack() as stack:
        if options.service is not None:
            opened = _service(options, (namespace, fingerprint), step_seconds, notify)
            backend: Backend = stack.enter_context(opened)
        else:
            backend = cache = stack.enter_context(_engine(options.data))
            if options.preload:
                cache.read_by_default(_preload(cache, options.preload, fingerprint))
        bound = backend.namespace(namespace, fingerprint)
        memory = Memory(bound, commit=not options.no_commit, notify=notify)
        stack.callback(memory.end)
        yield memory


def _engine(data: Path | None) -> SuffixCache:
    from suffixsvc import SuffixCache

    try:
        return SuffixCache(data)
    except StoreLockedError as error:
        raise error.with_remedy("If that process is a service, use it: --service ADDRESS.") from None


def _preload(cache: SuffixCache, names: str, fingerprint: str) -> list[str]:
    from suffixsvc_caches.recipes import find_recipes, preload

    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for recipe in find_recipes(wanted):
        if recipe.tokenizer != fingerprint:
            raise TokenizerMismatchError(
                f"the recipe {recipe.name} must be of the model's tokenizer",
                expected=fingerprint,
                got=recipe.tokenizer,
                remedy="Make a recipe from logs of this model: suffixsvc cache make FOLDER.",
            )
    return preload(cache, wanted)


@contextmanager
def _service(
    options: Options, namespace: tuple[str, str], step_seconds: float, notify: Notify
) -> Iterator[Follower | SuffixClient]:
    from suffixsvc_client import ClientConfig, SuffixClient
    from suffixsvc_follower import FollowerConfig, connect

    address = options.service or ""
    low, high = _STEP_TIMEOUT_S
    step_timeout = min(high, max(low, step_seconds)) if step_seconds else high
    config = FollowerConfig(ClientConfig(step_timeout_s=step_timeout, call_timeout_s=_CALL_TIMEOUT_S))
    with connect(address, [namespace], validate_mode(options.mode or "auto"), config) as backend:
        try:
            backend.server_info()
        except ServiceError as error:
            notify(f"continuing without the service at {address}: {error.message}")
        else:
            if not isinstance(backend, SuffixClient):
                _wait_for_copy(backend, namespace, notify)
        try:
            yield backend
        finally:
            counts = backend.counts
            unanswered = {str(reason): number for reason, number in counts.empty.items() if number}
            if unanswered and isinstance(backend, SuffixClient):
                why = ", ".join(f"{number} {reason}" for reason, number in unanswered.items())
                notify(
                    f"the service did not answer in {sum(unanswered.values())} of {counts.steps} steps: {why}"
                )


def _wait_for_copy(follower: Follower, namespace: tuple[str, str], notify: Notify) -> None:
    """Wait for the namespace, so that its outputs are drafted from the first token on."""
    path, fingerprint = namespace
    if follower.refusal is not None:
        notify(f"the service drafts, by a call per step: {follower.refusal.message}")
    elif not follower.wait(path, _COPY_TIMEOUT_S, tokenizer=fingerprint):
        notify(f"the namespace {path} is still being copied: its outputs are drafted from when it is here")

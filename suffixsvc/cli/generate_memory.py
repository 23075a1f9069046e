"""What ``suffixsvc generate`` drafts from and writes to: an engine of its own, or a service."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from suffixsvc.cli.generate_options import Options
from suffixsvc.config import MAX_NAMESPACE_BYTES
from suffixsvc.errors import (
    LimitExceededError,
    ServiceError,
    StoreError,
    StoreLockedError,
    TokenizerMismatchError,
    UnknownNamespaceError,
)
from suffixsvc.types import BackendNamespace, BackendSession, OutputId

if TYPE_CHECKING:
    from suffixsvc.engine import SuffixCache

__all__ = ["Memory", "namespace_of", "open_memory"]

#: a step of the service may cost at most a decode step of the target, within these bounds
_STEP_TIMEOUT_S: Final = (0.005, 0.05)
_CALL_TIMEOUT_S: Final = 10.0

Say = Callable[[str], None]


class Memory:
    """The session of a chat, through all its turns. Not thread-safe.

    Args:
        namespace: where it is.
        commit: whether what is written is kept.
        say: told what goes wrong at the end: never an error, for the text is there.

    Attributes:
        output_id: of what was kept; None so far.
    """

    def __init__(self, namespace: BackendNamespace, *, commit: bool, say: Say) -> None:
        self._namespace = namespace
        self._commit = commit
        self._say = say
        self._session: BackendSession | None = None
        self._held: list[int] = []  # what the session was told: the prompt of the last turn, and its answer
        self._wrote = False
        self.output_id: OutputId | None = None

    def begin(self, prompt_ids: Sequence[int]) -> BackendSession | None:
        """A session that holds exactly this prompt: the one of the turn before where the prompt goes on
        behind that, else a new one. None, which is told, where the memory has no room for one.

        Raises:
            SuffixError: what ``open_session`` refuses for good: another tokenizer, say.
        """
        prompt = list(prompt_ids)
        if self._session is not None and prompt[: len(self._held)] == self._held:
            self._session.append_context(prompt[len(self._held) :])
        else:
            self.end()
            try:
                self._session = self._namespace.open_session(prompt, labels={"agent": "generate"})
            except LimitExceededError as error:
                self._say(f"nothing is remembered: {error}")
        self._held = prompt
        return self._session

    def wrote(self, token_ids: Sequence[int]) -> None:
        """The session was told that the model wrote this."""
        self._held.extend(token_ids)
        self._wrote = self._session is not None

    def end(self) -> None:
        """Close the session, and keep what was written unless it is not to be. Idempotent."""
        session, self._session = self._session, None
        if session is None:
            return
        keep, self._wrote = self._commit and self._wrote, False
        try:
            self.output_id = session.close(commit=keep)
        except (ServiceError, StoreError, LimitExceededError, UnknownNamespaceError) as error:
            if keep:
                self._say(f"what was written is not remembered: {error}")


def namespace_of(model: Path) -> str:
    """The namespace of a model that none was named for: its file's name."""
    name = "".join(c if c.isprintable() and not c.isspace() else "-" for c in model.stem)
    return name.encode()[:MAX_NAMESPACE_BYTES].decode(errors="ignore").strip(".") or "model"


@contextmanager
def open_memory(
    options: Options, namespace: str, fingerprint: str, step_seconds: float, say: Say
) -> Iterator[Memory]:
    """The memory that the options name; what was written is kept when the block is left, also by an error.

    Args:
        fingerprint: of the target's tokenizer.
        step_seconds: what a plain step of the target takes; 0 where nobody knows.

    Raises:
        StoreLockedError: another process has the data folder open. StoreError: it cannot be used.
        TokenizerMismatchError: the namespace or a recipe is of another tokenizer.
        InvalidConfigError: no such recipe.
    """
    opened = _service if options.service is not None else _engine
    with opened(options, namespace, fingerprint, step_seconds, say) as memory:
        try:
            yield memory
        finally:
            memory.end()


@contextmanager
def _engine(
    options: Options, namespace: str, fingerprint: str, step_seconds: float, say: Say
) -> Iterator[Memory]:
    from suffixsvc import SuffixCache

    try:
        cache = SuffixCache(options.data)
    except StoreLockedError as error:
        raise StoreLockedError(
            error.message,
            expected=error.expected,
            got=error.got,
            remedy="Where that is a service, draft through it: --service ADDRESS.",
        ) from None
    with cache:
        if options.preload:
            cache.read_by_default(_preload(cache, options.preload, fingerprint))
        yield Memory(cache.namespace(namespace, fingerprint), commit=options.commit, say=say)


def _preload(cache: SuffixCache, names: str, fingerprint: str) -> list[str]:
    from suffixsvc_caches.recipes import find_recipes, preload

    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for recipe in find_recipes(wanted):
        if recipe.tokenizer != fingerprint:
            raise TokenizerMismatchError(
                f"the recipe {recipe.name} was made for another tokenizer than the model's",
                expected=fingerprint,
                got=recipe.tokenizer,
                remedy="Make one from logs of this model: suffixsvc cache make FOLDER.",
            )
    return preload(cache, wanted)


@contextmanager
def _service(
    options: Options, namespace: str, fingerprint: str, step_seconds: float, say: Say
) -> Iterator[Memory]:
    from suffixsvc_client import ClientConfig, SuffixClient

    low, high = _STEP_TIMEOUT_S
    patience = min(high, max(low, step_seconds)) if step_seconds else high
    config = ClientConfig(step_timeout_s=patience, call_timeout_s=_CALL_TIMEOUT_S)
    with SuffixClient(str(options.service), config) as client:
        try:
            client.server_info()
        except ServiceError as error:
            say(f"going on without the service at {options.service}: {error.message}")
        try:
            yield Memory(client.namespace(namespace, fingerprint), commit=options.commit, say=say)
        finally:
            lost = {str(reason): number for reason, number in client.counts.empty.items() if number}
            if lost:
                why = ", ".join(f"{number} {reason}" for reason, number in lost.items())
                steps = client.counts.steps
                say(f"the service did not answer in {sum(lost.values())} of {steps} steps: {why}")

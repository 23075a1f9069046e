"""A follower: a ``suffixsvc.types.Backend`` that drafts from copies of a service's namespaces."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from suffixsvc.config import validate_namespace
from suffixsvc.errors import SuffixError
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc.selection import Selection
from suffixsvc.types import DeletedOutputs, Deletion, Labels, NamespaceRecord, TokenArray
from suffixsvc_client import (
    ClientNamespace,
    ClientSession,
    ClientStats,
    ServerInfo,
    ServiceStats,
)
from suffixsvc_client.transport.interface import Forks
from suffixsvc_follower.config import FollowerConfig
from suffixsvc_follower.namespace import FollowerNamespace
from suffixsvc_follower.parts import FollowerParts
from suffixsvc_follower.session import FollowerSession
from suffixsvc_follower.stream.connection import FollowState
from suffixsvc_follower.stream.followed import Followed


class Follower(ClosedOnExit):
    """Drafts in this process from copies of a service's namespaces; ``suffixsvc_follower.connect`` makes it.

    Thread-safe; a session is used by one thread at a time. A forked child may use it: it connects again and
    follows the same namespaces, but the sessions belong to its parent.

    Args:
        target: ``unix:PATH`` or ``HOST:PORT``; InvalidConfigError for anything else.
        config: limits and timers.
        namespaces: (path, tokenizer) of those that are followed before a session uses them.
    """

    def __init__(
        self,
        target: str,
        config: FollowerConfig | None = None,
        namespaces: Iterable[tuple[str, str]] = (),
    ) -> None:
        self._target = target
        self._config = config or FollowerConfig()
        self._named = [(validate_namespace(path), tokenizer) for path, tokenizer in namespaces]
        self._lock = threading.Lock()
        self._forks = Forks.count
        self._inherited: list[FollowerParts] = []
        self._current = self._new_parts()

    def _new_parts(self) -> FollowerParts:
        parts = FollowerParts(self._target, self._config)
        for path, tokenizer in self._named:
            parts.follow(path, tokenizer)
        return parts

    @property
    def _parts(self) -> FollowerParts:
        """The parts of this process."""
        if self._forks != Forks.count:
            self._lock = threading.Lock()  # a thread of the parent may have held the other one
            with self._lock:
                if self._forks != Forks.count:
                    # never destroyed: a thread of the parent may have held a lock in it
                    self._inherited.append(self._current)
                    self._current = self._new_parts()
                    self._forks = Forks.count
        return self._current

    def namespace(self, path: str, tokenizer: str | None = None) -> FollowerNamespace:
        """The namespace at ``path``. Nothing is sent: errors of the service are raised by later calls.

        Args:
            path: components joined by "/", at most 200 bytes.
            tokenizer: fingerprint of the tokenizer (``suffixsvc.fingerprint``). The first one binds the
                namespace; another one is refused when a session is opened or an output is added.

        Raises:
            InvalidNamespaceError, InvalidInputError (``tokenizer`` is not a string).
        """
        remote = self._parts.client.namespace(path, tokenizer)
        return FollowerNamespace(self, remote, tokenizer or "")

    def open_session(
        self,
        remote: ClientNamespace,
        tokenizer: str,
        prompt: TokenArray,
        output: TokenArray,
        *,
        labels: Labels,
        reads: Sequence[str],
        private: bool,
    ) -> FollowerSession | ClientSession:
        """See :meth:`FollowerNamespace.open_session`."""
        parts = self._parts
        if self._named_before_fork(remote):
            remote = parts.client.namespace(remote.path, tokenizer or None)
        return parts.open_session(
            remote, tokenizer, prompt, output, labels=labels, reads=reads, private=private
        )

    def _named_before_fork(self, remote: ClientNamespace) -> bool:
        return remote.runner is not self._parts.client.runner

    def wait(self, path: str, timeout_s: float | None = None, *, tokenizer: str = "") -> bool:
        """Follow a namespace, and wait until its contents are in this process; whether they are.

        Args:
            path: of the namespace.
            timeout_s: longest time; None: no limit.
            tokenizer: fingerprint that the service compares; "" = none.

        Raises:
            SuffixError: the service does not let the namespace be followed, or this process follow.
        """
        parts = self._parts
        entry = parts.follow(validate_namespace(path), tokenizer)
        if parts.connection.wait_for_answer(1e9 if timeout_s is None else timeout_s) is FollowState.REFUSED:
            refusal: SuffixError | None = parts.connection.refusal
            if refusal is not None:
                raise refusal
        done = entry.ready.wait(timeout_s)
        if entry.refused is not None:
            raise entry.refused
        return done

    def followed(self, path: str) -> Followed:
        """The copy of a namespace and what it is used by; the namespace is followed from now on."""
        return self._parts.follow(validate_namespace(path), "")

    def live_text(self, path: str) -> dict[str, int]:
        """Live text of other processes that is in this one, and can be drafted from.

        Args:
            path: of the namespace; it is not followed because of this call.

        Returns:
            For each live session, by its id at the service: the number of tokens up to the end of the text
            that has arrived, prompt included.
        """
        parts = self._parts
        entry = parts.table.get(validate_namespace(path))
        if entry is None:
            return {}
        with parts.applier.lock:
            return entry.copy.mirrors.ends()

    @property
    def state(self) -> FollowState:
        """What the follower does at present."""
        return self._parts.connection.state

    def wait_for_answer(self, seconds: float) -> FollowState:
        """Wait until the service lets this process follow, or does not; the state then, or after
        ``seconds``."""
        return self._parts.connection.wait_for_answer(seconds)

    @property
    def refusal(self) -> SuffixError | None:
        """Why the service does not let this process follow; None if it does, or has not answered."""
        return self._parts.connection.refusal

    def refusal_of(self, path: str) -> SuffixError | None:
        """Why the service does not let this process follow a namespace; None if it does, has not answered, or
        was not asked."""
        entry = self._parts.table.get(validate_namespace(path))
        return self.refusal or (None if entry is None else entry.refused)

    @property
    def outage(self) -> SuffixError | None:
        """What ended the last stream, or kept it from beginning; None before that."""
        return self._parts.connection.outage

    @property
    def follower_id(self) -> str:
        """The id under which the service lists it."""
        return self._parts.follower_id

    @property
    def counts(self) -> ClientStats:
        """Counters of what was sent to the service."""
        return self._parts.client.counts

    def namespaces(self, prefix: str = "") -> list[NamespaceRecord]:
        """See ``SuffixClient.namespaces``."""
        return self._parts.client.namespaces(prefix)

    def delete(
        self,
        selection: Selection,
        *,
        superseded: bool = False,
        from_disk: bool = False,
        timeout_s: float | None = None,
    ) -> Deletion:
        """See ``SuffixClient.delete``."""
        client = self._parts.client
        return client.delete(selection, superseded=superseded, from_disk=from_disk, timeout_s=timeout_s)

    def delete_namespace(self, path: str, *, force: bool = False) -> DeletedOutputs:
        """See ``SuffixClient.delete_namespace``."""
        return self._parts.client.delete_namespace(path, force=force)

    def stats(self) -> ServiceStats:
        """See ``SuffixClient.stats``."""
        return self._parts.client.stats()

    def server_info(self) -> ServerInfo:
        """See ``SuffixClient.server_info``."""
        return self._parts.client.server_info()

    def close(self) -> None:
        """Send what is being closed, and end the connections. Open sessions stay on the service until they
        expire. Idempotent."""
        if self._forks == Forks.count:
            self._current.close()

"""Namespaces of a cache: creation, tokenizer binding, deletion, and recovery at open.

A namespace that the log holds is referenced strongly. A namespace that was never written to is referenced
weakly: it exists as long as a session, a handle or a write in flight uses it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Final

import structlog

from suffixsvc.config import NO_LIMIT_BYTES, Limits, validate_namespace
from suffixsvc.core import Learner, WriteSignal
from suffixsvc.engine.namespace_owners import NamespaceOwners
from suffixsvc.errors import (
    InvalidConfigError,
    LimitExceededError,
    NamespaceInUseError,
    StoreFullError,
    UnknownNamespaceError,
    namespace_being_deleted,
    tokenizer_mismatch,
    unknown_namespace,
)
from suffixsvc.index import NamespaceIndex
from suffixsvc.index.engine_state import Quota
from suffixsvc.index.lru_index import LruIndex
from suffixsvc.index.output_use import OutputUse
from suffixsvc.index.principal_totals import PrincipalTotals
from suffixsvc.policies import Policies, Policy, PrincipalQuota
from suffixsvc.runtime.signal_guard import AtomicCondition
from suffixsvc.store.base import Store
from suffixsvc.store.records.validation import check_namespace
from suffixsvc.types import OPERATOR_CREATOR, NamespaceCreator, NamespaceRecord

log = structlog.get_logger(__name__)

#: a shorter grace period is not logged: it is that of a restart
_LOGGED_GRACE_SECONDS: Final = 60.0
#: name of the operator's learned tables in the store; on the disk (docs/format.md)
_LEARNER_STATE: Final = "learner"


class Catalog:
    """The namespaces of one cache. Thread-safe; its lock is not held during a call of the store.

    A namespace is stored with its first output, in the same transaction. Before that it exists, with its
    tokenizer, as long as it is used.

    Args:
        store: holds the records and the learned tables.
        policies: policies of the namespaces.
        limits: maximum number of namespaces, and limit of the whole cache.
        starting_weights: initial weights of new namespaces, see ``suffixsvc.core.new_learner``.
    """

    def __init__(
        self, store: Store, policies: Policies, limits: Limits, starting_weights: bytes | None
    ) -> None:
        self._store = store
        self._policies = _require_policies(policies)
        #: whether a policy has ``min_principals``
        self.publishes = policies.publishes
        self._limits = limits
        self._starting_weights = starting_weights
        #: told when a session of any namespace has written tokens
        self.written = WriteSignal()
        #: of the outputs of all namespaces, also of those that were deleted
        self.use = OutputUse(store.clock.now_us)
        #: of the outputs and live sessions of principals
        self.totals = PrincipalTotals()
        self._owners = NamespaceOwners(self.totals)
        self._lock = AtomicCondition()
        self._strong: dict[str, NamespaceIndex] = {}
        self._weak: weakref.WeakValueDictionary[str, NamespaceIndex] = weakref.WeakValueDictionary()
        #: deleted namespaces, while live sessions refer to them
        self._deleted: weakref.WeakSet[NamespaceIndex] = weakref.WeakSet()
        grace_seconds = store.clock.grace_seconds
        if policies.has_ttl and grace_seconds >= _LOGGED_GRACE_SECONDS:
            log.info(
                "times to live of policies count the time in which the cache was closed after a grace period",
                closed_seconds=round(store.clock.moved_seconds),
                grace_seconds=round(grace_seconds),
            )

    def __len__(self) -> int:
        with self._lock:
            return len(self._strong) + len(self._weak)

    def __contains__(self, path: str) -> bool:
        return self.get(path) is not None

    def get(self, path: str) -> NamespaceIndex | None:
        """The index of a namespace, or None."""
        with self._lock:
            return self._strong.get(path) or self._weak.get(path)

    def values(self) -> list[NamespaceIndex]:
        """All indexes."""
        with self._lock:
            return [*self._strong.values(), *self._weak.values()]

    def in_use(self) -> list[NamespaceIndex]:
        """All indexes, and those of deleted namespaces that are still referenced, as by a live session."""
        with self._lock:
            return [*self._strong.values(), *self._weak.values(), *self._deleted]

    def stored(self) -> list[NamespaceIndex]:
        """The indexes of namespaces that the log holds, without those being deleted."""
        with self._lock:
            return [index for index in self._strong.values() if index.stored and not index.deleted]

    def records(self) -> list[NamespaceRecord]:
        """The records of all namespaces, ordered by path."""
        indexes = sorted(self.values(), key=lambda index: index.path)
        return [NamespaceRecord(index.path, index.tokenizer) for index in indexes]

    # ------------------------------------------------------------------------------------ lookup, creation

    def open(self, path: str, tokenizer: str, creator: NamespaceCreator = OPERATOR_CREATOR) -> NamespaceIndex:
        """The namespace of a path, created on first use, for tokens of this tokenizer, which is not bound.

        Raises:
            InvalidInputError, LimitExceededError, TokenizerMismatchError.
            StoreError: the namespace is being deleted.
        """
        check_namespace(NamespaceRecord(path, tokenizer))
        with self._lock:
            index = self.get(path)
            if index is None:
                self._require_capacity(creator)
                index = self._create(path)
                self._owners.add(index, creator.principal)
            if index.deleted:
                raise namespace_being_deleted(path)
            _require_tokenizer(index.path, index.tokenizer, tokenizer)
        return index

    def bind(self, index: NamespaceIndex, tokenizer: str) -> None:
        """Bind a tokenizer, unless it is empty, durably if the log holds the namespace.

        Waits for writes in flight that may create the namespace without it.

        Raises:
            TokenizerMismatchError.
            StoreError: the namespace is being deleted, or the tokenizer was not stored; the next call with
                it, or the next write, stores it.
        """
        if not tokenizer:
            return
        with self._lock:
            _require_tokenizer(index.path, index.tokenizer, tokenizer)
            index.tokenizer = tokenizer
            self._lock.wait_for(lambda: index.stored or not index.untagged_writes)
            is_logged = not index.stored or index.logged_tokenizer == tokenizer
        if not is_logged:
            try:
                self.store(index)
            except UnknownNamespaceError:
                raise namespace_being_deleted(index.path) from None

    def adopt(self, index: NamespaceIndex, tokenizer: str) -> None:
        """Give a namespace that the log does not hold the tokenizer of the runs that it publishes.

        It replaces one that a session has bound: a session without an output must not lock out others.
        """
        with self._lock:
            if not (index.stored or index.writes):
                index.tokenizer = tokenizer

    def _require_capacity(self, creator: NamespaceCreator) -> None:
        left = self._limits.max_namespaces - len(self)
        if left <= 0:
            raise LimitExceededError(
                "too many namespaces",
                expected=f"at most {self._limits.max_namespaces} (Limits.max_namespaces)",
                remedy="Write related outputs into one namespace, delete namespaces, or raise the limit.",
            )
        self._owners.require_share(creator, left, self.get)

    def _create(self, path: str, *, is_new: bool = True) -> NamespaceIndex:
        policy = self._policies.of(path)
        index = NamespaceIndex(
            path,
            self._starting_weights,
            now_us=self._store.clock.now_us,
            # also where nothing is evicted: the policy can change
            lru=LruIndex(complete=is_new, path=path, pinned=bool(policy.pinned), totals=self.totals),
            quota=Quota(
                policy,
                self._limits.max_cache_bytes < NO_LIMIT_BYTES,
                self._policies.has_quotas,
            ),
            written=self.written,
            use=self.use,
            totals=self.totals,
        )
        self._weak[path] = index
        return index

    @property
    def policies(self) -> Policies:
        """The policies of all paths."""
        return self._policies

    def set_policies(self, policies: Policies) -> None:
        """Replace the policies of all namespaces, existing ones included."""
        with self._lock:
            self._policies = _require_policies(policies)
            self.publishes = policies.publishes
            for index in (*self._strong.values(), *self._weak.values()):
                index.quota.principals_limited = policies.has_quotas
                index.set_policy(policies.of(index.path))

    def quota_of(self, principal: str) -> PrincipalQuota:
        """The quota of a principal."""
        return self._policies.quota_of(principal)

    def policy_of(self, path: str) -> Policy:
        """The effective policy of a path, whether or not a namespace exists there."""
        return self._policies.of(path)

    def index_of(self, path: str) -> NamespaceIndex:
        """The index of an existing namespace. UnknownNamespaceError if it does not exist."""
        index = self.get(validate_namespace(path))
        if index is None:
            raise unknown_namespace(path)
        return index

    def select(self, namespace: str | None) -> list[NamespaceIndex]:
        """The index of one namespace, or of all that the log holds, ordered by path.

        Raises:
            UnknownNamespaceError: it does not exist.
        """
        if namespace is None:
            return sorted(self.stored(), key=lambda index: index.path)
        index = self.index_of(namespace)
        return [index] if index.stored else []

    def readable(self, path: str, tokenizer: str) -> NamespaceIndex:
        """A namespace that sessions of this tokenizer may draft from.

        One that publishes runs need not exist: only those below it may be written to.

        Raises:
            UnknownNamespaceError, TokenizerMismatchError.
            LimitExceededError: too many namespaces.
        """
        index = self.get(validate_namespace(path))
        if index is None and self._policies.of(path).publishing is not None:
            index = self.open(path, "")
        if index is None or index.deleted:
            raise unknown_namespace(path)
        _require_tokenizer(path, tokenizer, index.tokenizer, "Read only namespaces of the same tokenizer.")
        return index

    def store(self, index: NamespaceIndex) -> None:
        """Store a namespace with its tokenizer, also without outputs. Durable when it returns."""
        create = self.begin_write(index)
        stored = False
        try:
            for record in create:
                self._store.add_namespace(record)
            stored = True
        finally:
            self.end_write(index, create, stored=stored)

    # -------------------------------------------------------------------------------------------- writing

    def begin_write(self, index: NamespaceIndex, tokenizer: str = "") -> Sequence[NamespaceRecord]:
        """Begin a write to a namespace; :meth:`end_write` must follow.

        Args:
            tokenizer: bound with the write, unless it is empty.

        Returns:
            The records that the store has to create for it.

        Raises:
            UnknownNamespaceError: the namespace was deleted.
            TokenizerMismatchError: another tokenizer was bound.
        """
        with self._lock:
            if index.deleted:
                raise unknown_namespace(index.path)
            _require_tokenizer(index.path, index.tokenizer, tokenizer)
            index.tokenizer = tokenizer or index.tokenizer
            index.writes += 1
            if index.stored and index.logged_tokenizer == index.tokenizer:
                return ()
            self._weak.pop(index.path, None)
            self._strong[index.path] = index
            index.untagged_writes += not index.tokenizer
            return [NamespaceRecord(index.path, index.tokenizer)]

    def end_write(self, index: NamespaceIndex, create: Sequence[NamespaceRecord], *, stored: bool) -> None:
        """End a write, after the store's decision.

        Args:
            create: the result of :meth:`begin_write`.
            stored: the store has the namespace.
        """
        with self._lock:
            index.writes -= 1
            index.stored |= stored
            for record in create:
                index.untagged_writes -= not record.tokenizer
                if stored:
                    index.logged_tokenizer = record.tokenizer or index.logged_tokenizer
            if not (index.stored or index.writes or index.deleted):
                self._strong.pop(index.path, None)
                self._weak[index.path] = index
            self._lock.notify_all()

    # ------------------------------------------------------------------------------------------- deletion

    def begin_delete(self, path: str, *, force: bool) -> NamespaceIndex:
        """Reject writes to a namespace and new sessions in it, from the return of this call on.

        Args:
            force: also if there are live sessions.

        Raises:
            UnknownNamespaceError, NamespaceInUseError.
        """
        with self._lock:
            index = self.index_of(path)
            if sessions := index.begin_delete(force=force):
                raise NamespaceInUseError(
                    f"namespace {path} must have no live sessions to be deleted",
                    expected="0 live sessions",
                    got=sessions,
                    remedy="Close them, or delete it with force: what they wrote is then discarded.",
                )
            self._lock.wait_for(lambda: not index.writes)  # none begins in a namespace that is deleted
        index.discard_live()
        return index

    def end_delete(self, index: NamespaceIndex) -> None:
        """Remove a namespace that the store has deleted."""
        with self._lock:
            self._deleted.add(index)
            self._owners.remove(index)
            for table in (self._strong, self._weak):
                if table.get(index.path) is index:
                    del table[index.path]

    # ------------------------------------------------------------------------------------------- recovery

    def recover(self) -> list[NamespaceIndex]:
        """The namespaces of earlier processes, without their outputs."""
        for record in self._store.namespaces():
            index = self._create(record.path, is_new=False)
            index.tokenizer, index.logged_tokenizer, index.stored = record.tokenizer, record.tokenizer, True
            self._strong[record.path] = self._weak.pop(record.path)
            learned = self._store.get_state(record.path, _LEARNER_STATE)
            if learned is not None:
                # tables of another version are ignored: they are derived, and learned again
                index.learner.load(learned)
        return self.stored()

    def learner_of(self, index: NamespaceIndex, principal: str) -> Learner:
        """What drafting has learned in a namespace for a principal, also in earlier processes.

        Raises:
            StoreError: the stored tables cannot be read.
        """
        saved = None
        if index.stored and not index.has_learner(principal):
            try:
                saved = self._store.get_state(index.path, _learner_state(principal))
            except UnknownNamespaceError:
                if not index.deleted:
                    raise
        learner = index.learner_of(principal)
        if saved is not None and not learner.changed:
            learner.load(saved)
        return learner

    def drop_learned(self, index: NamespaceIndex) -> None:
        """Delete the stored tables that a namespace has learned. UnknownNamespaceError, StoreError."""
        for name in (_LEARNER_STATE, *self._store.state_names(index.path, _learner_state("") + ":")):
            self._store.drop_state(index.path, name)

    def save_learned(self) -> None:
        """Store the learned tables for the next process."""
        for index in self.stored():
            for principal, learner in {"": index.learner, **index.learners()}.items():
                if learner.changed:
                    self._save(index, principal, learner)

    def _save(self, index: NamespaceIndex, principal: str, learner: Learner) -> None:
        try:
            self._store.put_state(index.path, _learner_state(principal), learner.save())
        except StoreFullError as error:  # derived and learned again: no reason to fail a close
            log.warning("the learned tables could not be saved", namespace=index.path, error=str(error))


def _learner_state(principal: str) -> str:
    """Name of a principal's learned tables in the store."""
    return f"{_LEARNER_STATE}:{principal}" if principal else _LEARNER_STATE


def _require_tokenizer(path: str, expected: str, got: str, *remedy: str) -> None:
    """Raise TokenizerMismatchError if a namespace and its caller differ in tokenizer; "" goes with any."""
    if expected and got and expected != got:
        raise tokenizer_mismatch(path, expected, got, *remedy)


def _require_policies(policies: Policies) -> Policies:
    if not isinstance(policies, Policies):
        raise InvalidConfigError("policies must be a Policies instance or None", got=type(policies).__name__)
    return policies

"""Addition and deletion of outputs in log and index.

    commit   admit ──> log                  output of a session, whose text is indexed as it is written
    add      admit ──> index ──> log        bulk
    forget             log ──> index        deletion, eviction and expiry

Every logged output is indexed: its text is inserted before its row is written and removed after its row is
deleted. During a call of the store no lock is held for which an open, a step or another write would have to
wait; work that depends on the order of commits is done in the store's callbacks (see ``Store.append`` and
``Store.set_deletion_listener``).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

import structlog

from suffixsvc.clock import ExpiryCutoff
from suffixsvc.config import Limits
from suffixsvc.engine.base.close_guard import CloseGuard
from suffixsvc.engine.catalog import Catalog
from suffixsvc.engine.limits.quota_manager import QuotaManager
from suffixsvc.engine.outputs.unindexing import Unindexer
from suffixsvc.engine.outputs.writes import BulkLoad, LiveWrite
from suffixsvc.errors import LimitExceededError, NoStoreError, SuffixError, UnknownNamespaceError
from suffixsvc.index import NamespaceIndex, OnCommitted
from suffixsvc.runtime.signal_guard import uninterrupted
from suffixsvc.runtime.sync_points import SyncPoint
from suffixsvc.runtime.weak_calls import weak_callback
from suffixsvc.store.base import Store
from suffixsvc.store.records.validation import check_now, check_output
from suffixsvc.types import NewOutput, OutputId, repeated_in

log = structlog.get_logger(__name__)

#: outputs that are deleted from the log before their texts are removed from the index
_FORGET_BATCH = 256


class OutputLog:
    """The outputs of one cache. Thread-safe.

    Args:
        store: the log.
        catalog: the namespaces of the cache.
        close_guard: guard of the cache's close.
        limits: limits of an output's length and of the whole cache.
        sync_point: see :mod:`suffixsvc.runtime.sync_points`.

    Attributes:
        quotas: admission and eviction.
    """

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        close_guard: CloseGuard,
        limits: Limits,
        sync_point: SyncPoint,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._close_guard = close_guard
        self._limits = limits
        self.quotas = QuotaManager(
            limits.max_cache_bytes,
            store,
            catalog,
            weakref.WeakMethod(self.forget_many),
            sync_point,
        )
        self._unindexer = Unindexer(catalog, self.quotas.usage.refresh)
        # weak, so that the store does not keep the cache alive
        store.set_deletion_listener(weak_callback(self._unindexer.forgotten))

    # -------------------------------------------------------------------------------------------- writing

    def commit(
        self, index: NamespaceIndex, output: NewOutput, on_committed: OnCommitted, live_bytes: int
    ) -> Future[list[OutputId]]:
        """Log a session's output; the future holds its id once it is durable. See ``index.Commit``."""
        write = LiveWrite(index, output, on_committed)
        try:
            with self._close_guard.while_open():
                write.begin(self.quotas, self._catalog, live_bytes=live_bytes)
            return write.submit(self._store)
        except BaseException:
            write.abandon()
            raise

    def add(self, index: NamespaceIndex, outputs: Sequence[NewOutput], tokenizer: str) -> list[OutputId]:
        """Index and log outputs of one namespace, all or none, and bind their tokenizer.

        See ``Namespace.add_outputs``.
        """
        if index.quota.policy.no_store:
            raise NoStoreError(
                f"namespace {index.path!r} must permit that outputs are stored",
                expected="a policy without no_store",
                got="no_store = true",
                remedy="Write to another namespace, or change the policy of this one.",
            )
        self._check(index, outputs)
        with self._close_guard.while_open():
            ids = self._log(index, outputs, tokenizer)
        self.reclaim(index, outputs)
        return ids

    def _check(self, index: NamespaceIndex, outputs: Sequence[NewOutput]) -> None:
        """Validate outputs of one namespace; the errors of ``Namespace.add_outputs``."""
        for output in outputs:
            check_output(output)
            if len(output.token_ids) > self._limits.max_output_tokens:
                raise LimitExceededError(
                    f"an output must have at most {self._limits.max_output_tokens} tokens"
                    " (Limits.max_output_tokens)",
                    got=len(output.token_ids),
                )
            if output.namespace != index.path:
                raise UnknownNamespaceError(
                    "an output belongs to another namespace", expected=index.path, got=output.namespace
                )

    def _log(self, index: NamespaceIndex, outputs: Sequence[NewOutput], tokenizer: str) -> list[OutputId]:
        load = BulkLoad(index, outputs, self._unindexer)
        try:
            uninterrupted(lambda: load.begin(self.quotas, self._catalog, tokenizer))
            for _ in outputs:
                uninterrupted(load.insert_next)
            future = uninterrupted(lambda: load.submit(self._store))
        except BaseException:
            uninterrupted(load.abandon)
            self.finish_removals()
            raise
        try:  # an interrupt of the wait undoes nothing: only the store decides
            ids = future.result()
        except SuffixError:
            self.finish_removals()
            raise
        if repeated_in(ids):
            self.finish_removals()
        return ids

    def reclaim(self, index: NamespaceIndex, written: Sequence[NewOutput]) -> None:
        """Evict after an acknowledged write. A failure is logged: it is not an error of that write."""
        try:
            self.quotas.reclaim(index, written)
        except SuffixError as error:
            log.warning("eviction failed; it is retried", namespace=index.path, error=str(error))

    # ------------------------------------------------------------------------------------------- deletion

    def forget_many(self, path: str, output_ids: Sequence[OutputId], *, erase: bool = False) -> int:
        """Delete those of a namespace's outputs that exist, in few transactions; returns how many.

        Args:
            erase: request the erasure of their texts from the disk.
        """
        deleted = 0
        for first in range(0, len(output_ids), _FORGET_BATCH):
            with self._removing():
                batch = output_ids[first : first + _FORGET_BATCH]
                deleted += len(self._store.forget_many(path, batch, erase=erase))
        return deleted

    def expire(self, now: float | None = None) -> int:
        """Delete outputs whose time to live has passed, their own or their policy's; returns how many.

        Args:
            now: see ``SuffixCache.expire``.
        """
        cutoff = self._store.clock.expiry_cutoff() if now is None else ExpiryCutoff.at(check_now(now))
        outputs, count = 0, 1
        while count:
            with self._close_guard.while_open(), self._removing():
                count = len(self._store.expire(now))
            outputs += count
        with self._close_guard.while_open():
            return outputs + self.quotas.evictor.expire(self._catalog.stored(), cutoff)

    @contextmanager
    def _removing(self) -> Iterator[None]:
        """Remove the texts of outputs that the block deletes from the log, also if it fails."""
        try:
            yield
        finally:
            self.finish_removals()

    def finish_removals(self) -> None:
        """Wait until the texts of outputs deleted before this call are removed from the indexes."""
        self._unindexer.finish()

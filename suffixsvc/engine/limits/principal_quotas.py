"""Quotas of principals: what each may store, and hold in live sessions, in all namespaces together.

    before a write             admit: reject outputs that would not fit even if all others of their principal
                               that can be evicted were
    before a session grows     admit_session: reject what would not fit then; else evict
    after a write, and periodically
                               reclaim: evict outputs of the principal, the least recently used first

Only outputs of the same principal are evicted, whichever namespace they are in. An output is charged by its
own row, not by the memory of its namespace, so that what others write changes nothing of it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from suffixsvc.engine.catalog import Catalog
from suffixsvc.engine.limits.eviction import BATCH_OUTPUTS, LOW_WATERMARK, Evictor
from suffixsvc.engine.limits.size_estimates import predicted_session_bytes
from suffixsvc.errors import LimitExceededError
from suffixsvc.index import NamespaceIndex
from suffixsvc.index.output_size import OutputSize, charge_of, size_of
from suffixsvc.policies import UNLIMITED, PrincipalQuota
from suffixsvc.types import NewOutput, OutputId


@dataclass(frozen=True, slots=True)
class PrincipalStats:
    """What a principal holds, in all namespaces together, and its quota. Counters start with the process."""

    outputs: int  #: stored outputs
    held_bytes: int  #: charge of these outputs: see docs/limits.md
    sessions: int  #: live sessions
    session_bytes: int  #: their memory
    limit_bytes: int  #: limit of held_bytes and session_bytes together; 0: none
    limit_outputs: int  #: limit of outputs; 0: none
    evicted_outputs: int  #: outputs deleted to keep the limits
    refused: int  #: writes and sessions that were rejected because of the limits


@dataclass(slots=True)
class _Use:
    """What a principal holds at a moment. ``pinned``: of it, what is never evicted."""

    bytes: int = 0
    outputs: int = 0
    pinned_bytes: int = 0
    pinned_outputs: int = 0


class PrincipalQuotas:
    """Enforces the quotas of the principals of one cache. Thread-safe.

    Args:
        catalog: the namespaces of the cache, and the quotas.
        evictor: evicts outputs of a namespace.
    """

    def __init__(self, catalog: Catalog, evictor: Evictor) -> None:
        self._catalog = catalog
        self._evictor = evictor
        self._totals = catalog.totals
        #: held while an admission of a principal measures and reserves, so that they are serialised
        self._admitting: dict[str, threading.Lock] = {}
        #: held while outputs of a principal are evicted
        self._evicting: dict[str, threading.Lock] = {}
        #: guards the tables below; held for nothing else
        self._lock = threading.Lock()
        #: admitted writes that are not in the log yet, by principal; and bytes of sessions that grow
        self._reserved: dict[str, _Use] = {}
        self._growing: Counter[str] = Counter()
        self._evicted: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()

    # ------------------------------------------------------------------------------------------ admission

    @contextmanager
    def admit(
        self, index: NamespaceIndex, outputs: Sequence[NewOutput], *, live_bytes: int = 0
    ) -> Iterator[None]:
        """Admit outputs that are written in the block.

        Args:
            live_bytes: memory that they have already as texts of live sessions, which ends with the write.

        Raises:
            LimitExceededError: they do not fit. Nothing was evicted.
        """
        with ExitStack() as held:
            for principal in self._limited(outputs):
                own = [each for each in outputs if each.principal == principal]
                held.enter_context(self._admit(principal, index, own, live_bytes=live_bytes))
            yield

    def _limited(self, outputs: Iterable[NewOutput]) -> list[str]:
        """The principals of outputs that have a quota."""
        found = dict.fromkeys(output.principal for output in outputs)
        return [name for name in found if _is_limit(self._catalog.quota_of(name))]

    @contextmanager
    def _admit(
        self, principal: str, index: NamespaceIndex, outputs: Sequence[NewOutput], *, live_bytes: int
    ) -> Iterator[None]:
        quota = self._catalog.quota_of(principal)
        new = _Use()
        for output in outputs:
            pinned = output.corpus or bool(index.quota.policy.pinned)
            _sum(new, _use_of(size_of(output), pinned=pinned), 1)
        self._load()
        with self._lock_of(self._admitting, principal):
            used = self._use(principal)
            sessions = max(0, self._live_bytes(principal) - live_bytes)
            with self._lock:
                reserved = self._reserved.setdefault(principal, _Use())
                kept = used.pinned_bytes + reserved.pinned_bytes + sessions
                kept_outputs = used.pinned_outputs + reserved.pinned_outputs
                if quota.max_bytes is not None and kept + new.bytes > quota.max_bytes:
                    self._refused[principal] += 1
                    raise _bytes_error(principal, quota.max_bytes, kept, new.bytes)
                if quota.max_outputs is not None and kept_outputs + new.outputs > quota.max_outputs:
                    self._refused[principal] += 1
                    raise _outputs_error(principal, quota.max_outputs, kept_outputs, new.outputs)
                _sum(reserved, new, 1)
        try:
            yield
        finally:
            with self._lock:
                _sum(self._reserved[principal], new, -1)

    @contextmanager
    def admit_session(self, principal: str, context: int, output: int) -> Iterator[Callable[[], None]]:
        """Admit the tokens of a session that is opened, or grows, in the block.

        Args:
            context: tokens of prompt and context.
            output: tokens that the model wrote.

        Yields:
            A function that evicts what has to make room, called when nothing else can reject the tokens.

        Raises:
            LimitExceededError: they do not fit. Nothing was evicted.
        """
        most = self._catalog.quota_of(principal).max_bytes
        if most is None or most >= UNLIMITED:
            yield lambda: None
            return
        size = predicted_session_bytes(context, output)
        self._load()
        with self._lock_of(self._admitting, principal):
            used, live = self._use(principal), self._live_bytes(principal)
            with self._lock:
                kept = used.pinned_bytes + self._reserved.get(principal, _Use()).bytes + live
                if kept + size > most:
                    self._refused[principal] += 1
                    raise _session_error(principal, most, kept, size, context + output)
                self._growing[principal] += size

        def make_room() -> None:
            self._reclaim(principal)

        try:
            yield make_room
        finally:
            with self._lock:
                self._growing[principal] -= size

    # ------------------------------------------------------------------------------------------- eviction

    def reclaim(self, outputs: Sequence[NewOutput]) -> int:
        """Evict after a write, until its principals are within their quotas; returns how many outputs.

        Raises:
            StoreError: the store could not delete.
        """
        evicted = 0
        for principal in self._limited(outputs):
            own = [charge_of(size_of(each)) for each in outputs if each.principal == principal]
            evicted += self._reclaim(principal, sum(own), len(own))
        return evicted

    def evict(self) -> int:
        """Reduce all principals to their quotas; returns how many outputs were evicted."""
        return sum(self._reclaim(name) for name in self._principals())

    def _principals(self) -> list[str]:
        """The principals that hold outputs or sessions, and have a quota."""
        return [name for name in sorted(self._totals.principals()) if _is_limit(self._catalog.quota_of(name))]

    def _lock_of(self, locks: dict[str, threading.Lock], principal: str) -> threading.Lock:
        with self._lock:
            return locks.setdefault(principal, threading.Lock())

    def _reclaim(self, principal: str, caused_bytes: int = 0, caused_outputs: int = 0) -> int:
        """Evict until a principal is within its quota, then down to the low watermark of it.

        Args:
            caused_bytes, caused_outputs: what a write has just added, which it does not evict.
        """
        quota = self._catalog.quota_of(principal)
        self._load()
        evicted = 0
        with self._lock_of(self._evicting, principal):
            used = self._use(principal)
            more_bytes, more_outputs = self._excess(principal, quota, used, caused_bytes, caused_outputs)
            while more_bytes > 0 or more_outputs > 0:
                chosen = self._oldest(principal, more_bytes, more_outputs)
                if not chosen:
                    break
                for index, ids in chosen.items():
                    evicted += self._evictor.evict_outputs(index, ids)
                now = self._use(principal)
                more_bytes -= used.bytes - now.bytes
                more_outputs -= used.outputs - now.outputs
                used = now
        if evicted:
            with self._lock:
                self._evicted[principal] += evicted
        return evicted

    def _excess(
        self, principal: str, quota: PrincipalQuota, used: _Use, caused_bytes: int, caused_outputs: int
    ) -> tuple[int, int]:
        """(bytes, outputs) to evict: down to the low watermark if a limit is exceeded, else none."""
        more_bytes = more_outputs = 0
        if quota.max_bytes is not None:
            live = self._live_bytes(principal)
            if used.bytes + live > quota.max_bytes:
                lowest = used.pinned_bytes + live + caused_bytes
                target = min(quota.max_bytes, max(int(quota.max_bytes * LOW_WATERMARK), lowest))
                more_bytes = used.bytes + live - target
        if quota.max_outputs is not None and used.outputs > quota.max_outputs:
            lowest = used.pinned_outputs + caused_outputs
            target = min(quota.max_outputs, max(int(quota.max_outputs * LOW_WATERMARK), lowest))
            more_outputs = used.outputs - target
        return more_bytes, more_outputs

    def _oldest(
        self, principal: str, more_bytes: int, more_outputs: int
    ) -> dict[NamespaceIndex, list[OutputId]]:
        """The least recently used outputs of a principal that can be evicted: as many as free this much, at
        most BATCH_OUTPUTS."""
        rows: list[tuple[int, int, OutputId, OutputSize]] = []
        found = map(self._catalog.get, self._totals.paths_of(principal))
        indexes = [each for each in found if each is not None and not each.quota.policy.pinned]
        for number, index in enumerate(indexes):
            if index.lru is not None:
                self._evictor.note_drafts(index)
                rows += [
                    (last_used, number, output_id, size)
                    for last_used, output_id, size in index.lru.oldest_of(principal, BATCH_OUTPUTS)
                ]
        chosen: dict[NamespaceIndex, list[OutputId]] = {}
        for _, number, output_id, size in sorted(rows)[:BATCH_OUTPUTS]:
            if more_bytes <= 0 and more_outputs <= 0:
                break
            chosen.setdefault(indexes[number], []).append(output_id)
            more_bytes -= charge_of(size)
            more_outputs -= 1
        return chosen

    # ----------------------------------------------------------------------------------------- measurement

    def stats(self, principals: Collection[str] = ()) -> dict[str, PrincipalStats]:
        """What principals with a quota hold, and those named, by name."""
        if not principals and not self._catalog.policies.has_quotas:
            return {}  # the outputs of earlier processes need not be counted
        self._load()
        found = {}
        for name in {*self._principals(), *principals}:
            quota, used = self._catalog.quota_of(name), self._use(name)
            sessions, session_bytes = self._totals.sessions_of(name)
            with self._lock:
                found[name] = PrincipalStats(
                    outputs=used.outputs,
                    held_bytes=used.bytes,
                    sessions=sessions,
                    session_bytes=session_bytes,
                    limit_bytes=_or_none(quota.max_bytes),
                    limit_outputs=_or_none(quota.max_outputs),
                    evicted_outputs=self._evicted[name],
                    refused=self._refused[name],
                )
        return found

    def _load(self) -> None:
        """Have the outputs of earlier processes counted; they are read from the log once."""
        for path in self._totals.uncounted():
            index = self._catalog.get(path)
            if index is not None:
                self._evictor.load(index)

    def _use(self, principal: str) -> _Use:
        written = self._totals.written_by(principal)
        pinned = written.pinned
        return _Use(charge_of(written.all), written.all.outputs, charge_of(pinned), pinned.outputs)

    def _live_bytes(self, principal: str) -> int:
        """Memory of a principal's live sessions, and of those that are being opened or grow."""
        with self._lock:
            growing = self._growing[principal]
        return growing + self._totals.sessions_of(principal)[1]


def _is_limit(quota: PrincipalQuota) -> bool:
    return quota.max_bytes is not None or quota.max_outputs is not None


def _or_none(limit: int | None) -> int:
    return 0 if limit is None or limit >= UNLIMITED else limit


def _use_of(size: OutputSize, *, pinned: bool) -> _Use:
    charge = charge_of(size)
    return _Use(charge, size.outputs, charge * pinned, size.outputs * pinned)


def _sum(use: _Use, more: _Use, sign: int) -> None:
    use.bytes += sign * more.bytes
    use.outputs += sign * more.outputs
    use.pinned_bytes += sign * more.pinned_bytes
    use.pinned_outputs += sign * more.pinned_outputs


def _bytes_error(principal: str, limit: int, kept: int, size: int) -> LimitExceededError:
    return LimitExceededError(
        f"outputs of the principal {principal!r} must fit in its max_bytes",
        expected=f"at most {limit} bytes in all namespaces together, live sessions included",
        got=f"{kept} bytes that cannot be evicted and {size} more",
        remedy="Close sessions, delete or unpin outputs, write less at a time, or let an operator raise"
        f' max_bytes in [principals."{principal}"]; nothing was evicted.',
    )


def _outputs_error(principal: str, limit: int, kept: int, count: int) -> LimitExceededError:
    return LimitExceededError(
        f"outputs of the principal {principal!r} must be at most its max_outputs",
        expected=f"at most {limit} outputs in all namespaces together",
        got=f"{kept} that cannot be evicted and {count} more",
        remedy="Delete or unpin outputs, write fewer at a time, or let an operator raise max_outputs in"
        f' [principals."{principal}"]; nothing was evicted.',
    )


def _session_error(principal: str, limit: int, kept: int, size: int, tokens: int) -> LimitExceededError:
    return LimitExceededError(
        f"{tokens} tokens of a session of the principal {principal!r} must fit in its max_bytes",
        expected=f"at most {limit} bytes in all namespaces together, outputs included",
        got=f"{kept} bytes of live sessions and outputs that cannot be evicted, and {size} more",
        remedy="Close sessions, open with a shorter prompt, or let an operator raise max_bytes in"
        f' [principals."{principal}"]; live sessions go on.',
    )

"""Random writes, drafts, evictions, pins, expiries and restarts, compared with a list: which outputs are
evicted."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from limits_testing import index_is_log, output, text

from suffixsvc import Limits, Policies, Policy, SuffixCache
from suffixsvc.errors import LimitExceededError
from suffixsvc.index.session import UNMEASURED_TOKENS
from support.engine_parts import parts_of
from support.long_form import rounds

KIB = 1 << 10
PATHS = ["small", "small/ns", "pinned", "free", "old"]
LIMITS = {"small": 60 * KIB, "small/ns": 40 * KIB, "pinned": 40 * KIB}
WHOLE = 220 * KIB
DECODE_STEP = 200  #: tokens
NEWEST = 2**63  #: beyond all ids
POLICIES = Policies(
    {
        "small": Policy(max_bytes=LIMITS["small"]),
        "small/ns": Policy(max_bytes=LIMITS["small/ns"]),
        "pinned": Policy(max_bytes=LIMITS["pinned"], ttl_seconds=100, pinned=True),
        "old": Policy(ttl_seconds=1000),
    }
)


class LimitsMachine(RuleBasedStateMachine):
    """The stored outputs, per namespace, the least recently used first."""

    durable = False

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp()) if self.durable else None
        self.kept: dict[str, list[int]] = {path: [] for path in PATHS}
        self.corpus: set[int] = set()
        self.seed_of: dict[int, int] = {}
        self.seed = 0
        self.ahead = 0.0  # of the real clock
        self.open()

    def open(self) -> None:
        data = None if self.folder is None else self.folder / "data"
        limits = Limits(max_cache_bytes=WHOLE, seal_tokens=500)
        self.cache = SuffixCache(data, limits=limits, policies=POLICIES, background=False)
        for path in PATHS:
            self.cache.namespace(path).put_note("here", b"")  # also without a write
        self.note()

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        index_is_log(self.cache)
        self.cache.close()
        if self.folder is not None:
            shutil.rmtree(self.folder)

    def there(self, path: str) -> list[int]:
        return parts_of(self.cache).store.output_ids(path, 0, NEWEST)

    def after(self, path: str, new: list[int], *, refused: bool) -> None:
        """Checks after a write: evicted outputs must be the least recently used of the namespace."""
        if refused:
            assert not new
        self.kept[path] += new
        there = self.there(path)
        gone = [i for i in self.kept[path] if i not in there]
        assert set(there) <= set(self.kept[path])
        may_go = [] if path == "pinned" else [i for i in self.kept[path] if i not in self.corpus]
        assert gone == may_go[: len(gone)]
        assert not set(gone) & set(new), "a write never evicts its own outputs"
        assert not (gone and refused), "a refused write evicts nothing"
        self.kept[path] = [i for i in self.kept[path] if i in there]
        for other in PATHS:
            if other != path:
                assert self.there(other) == sorted(self.kept[other]), "a neighbour was touched"
        if not refused:
            # The bytes that eviction frees between pinned outputs are estimated.
            slack = 1.05 if self.corpus & set(self.kept[path]) else 1.0
            stats = self.cache.namespace(path).stats()
            assert stats.held_bytes <= LIMITS.get(path, WHOLE) * slack
            assert self.cache.stats().held_bytes <= max(WHOLE * slack, self.before)
        self.note()

    def note(self) -> None:
        """A retracted text leaves the tree slightly less compact: bytes that no write added."""
        self.before = self.cache.stats().held_bytes

    @rule(
        path=st.sampled_from(PATHS),
        count=st.integers(1, 3),
        tokens=st.integers(1, 300),
        corpus=st.integers(0, 7).map(lambda n: n == 0),
    )
    def add(self, path: str, count: int, tokens: int, corpus: bool) -> None:
        seeds = range(self.seed, self.seed + count)
        self.seed += count
        outputs = [output(path, seed, tokens, corpus=corpus) for seed in seeds]
        new: list[int] = []
        with contextlib.suppress(LimitExceededError):
            new = self.cache.namespace(path).add_outputs(outputs)
        self.seed_of.update(zip(new, seeds, strict=False))
        if corpus:
            self.corpus.update(new)
        self.after(path, new, refused=not new)

    @rule(path=st.sampled_from(PATHS), tokens=st.integers(1, UNMEASURED_TOKENS))
    def session(self, path: str, tokens: int) -> None:
        seed, self.seed = self.seed, self.seed + 1
        session = self.cache.namespace(path).open_session([1])
        for first in range(0, tokens, DECODE_STEP):  # so few are never rejected, and evict nothing
            session.step(text(seed, tokens)[first : first + DECODE_STEP], 0)
        output_id = session.close()
        if output_id is not None:
            self.seed_of[output_id] = seed
        self.after(path, [] if output_id is None else [output_id], refused=output_id is None)

    @rule(path=st.sampled_from(PATHS), reader=st.sampled_from(PATHS), which=st.integers(0, 30))
    def draft(self, path: str, reader: str, which: int) -> None:
        """From the session's namespace or from another one."""
        if not self.kept[path]:
            return
        output_id = sorted(self.kept[path])[which % len(self.kept[path])]
        wrote = parts_of(self.cache).store.get(output_id).output.token_ids
        session = self.cache.namespace(reader).open_session([1], reads=[path] if reader != path else None)
        drafted = session.step(wrote[:16], 16, 0.001)
        session.close(commit=False)
        self.note()
        if len(drafted):
            assert drafted.token_ids[0] in text(self.seed_of[output_id], len(wrote))
            self.kept[path].remove(output_id)
            self.kept[path].append(output_id)

    @rule(path=st.sampled_from(PATHS), which=st.integers(0, 30))
    def forget(self, path: str, which: int) -> None:
        if self.kept[path]:
            output_id = self.kept[path].pop(which % len(self.kept[path]))
            self.cache.namespace(path).delete(output_ids=[output_id])

    @rule()
    def evict(self) -> None:
        """Periodic eviction: only namespaces above their low watermark may shrink."""
        before = {path: self.there(path) for path in PATHS}
        self.cache.evict()
        for path in PATHS:
            there = self.there(path)
            gone = [i for i in self.kept[path] if i not in there]
            assert gone == [i for i in self.kept[path] if i not in self.corpus][: len(gone)]
            assert not gone or path in ("small", "small/ns")
            assert set(there) <= set(before[path])
            self.kept[path] = [i for i in self.kept[path] if i in there]

    @rule(seconds=st.integers(0, 600))
    def expire(self, seconds: int) -> None:
        self.ahead += seconds
        now = max((s.written_at for s in parts_of(self.cache).store.scan()), default=1e9) + self.ahead
        written = [s.written_at for s in parts_of(self.cache).store.scan("old")]
        while any(abs(at + 1000 - now) < 5 for at in written):
            now += 10  # outputs are recorded for eviction a moment after their time in the log
        due = [s.output_id for s in parts_of(self.cache).store.scan("old") if s.written_at + 1000 <= now]
        due = [i for i in due if i not in self.corpus]
        assert self.cache.expire(now) == len(due)
        self.kept["old"] = [i for i in self.kept["old"] if i not in due]

    @rule(path=st.sampled_from(PATHS))
    def seal(self, path: str) -> None:
        """Sealed outputs are evicted, expired and drafted from as before."""
        if self.durable and self.kept[path]:
            self.cache.seal(path)
            self.weigh()

    @rule(path=st.none() | st.sampled_from(PATHS))
    def compact(self, path: str | None) -> None:
        if self.durable:
            self.cache.compact(path)
            self.weigh()

    def weigh(self) -> None:
        """Outputs were moved; the cache measures them at the next refresh."""
        for index in parts_of(self.cache).catalog.values():
            parts_of(self.cache).quotas.usage.refresh(index)
        self.note()

    @rule()
    def restart(self) -> None:
        if self.durable:
            self.cache.close()
            self.open()
            self.weigh()

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "cache"):
            return
        for path in PATHS:
            assert self.there(path) == sorted(self.kept[path])
            assert self.cache.namespace(path).stats().outputs == len(self.kept[path])
        assert parts_of(self.cache).quotas.usage.used == self.cache.stats().held_bytes
        self.cache.check()


class DurableLimitsMachine(LimitsMachine):
    durable = True


LimitsMachine.TestCase.settings = settings(max_examples=rounds(10, full=40), stateful_step_count=50)
DurableLimitsMachine.TestCase.settings = settings(
    max_examples=rounds(4, full=10),
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.generate, Phase.reuse],
)
TestLimits = LimitsMachine.TestCase
TestDurableLimits = DurableLimitsMachine.TestCase

"""Any sequence of calls against a dictionary that does the same; check() after every step."""

from __future__ import annotations

import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from store_testing import Clock, make_output, plain

from suffixsvc.errors import UnknownOutputError
from suffixsvc.store import LmdbStore, MemoryStore
from suffixsvc.types import NamespaceRecord, NewOutput, Store, StoredOutput

PATHS = ("a", "a/b", "z")

outputs = st.builds(
    make_output,
    # few different contents, so that payloads are shared often
    tokens=st.sampled_from([(1,), (1, 1), (1, 2), tuple(range(9)), tuple(range(3000))]),
    namespace=st.sampled_from(PATHS),
    tail=st.lists(st.integers(0, 2**31 - 1), max_size=3),
    labels=st.dictionaries(st.sampled_from("abc"), st.text(max_size=3), max_size=2),
    incomplete=st.booleans(),
    corpus=st.booleans(),
    ttl_seconds=st.sampled_from([0, 0, 1, 5, 2**32 - 1]),
)


class StoreMachine(RuleBasedStateMachine):
    """The rules both stores are run through."""

    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock(1_000_000.0)
        self.rows: dict[int, tuple[float, dict[str, Any]]] = {}
        self.states: dict[tuple[str, str], bytes] = {}
        self.last = 0

    @initialize()
    def open(self) -> None:
        self.start()
        for path in PATHS:
            self.store.add_namespace(NamespaceRecord(path))

    def start(self) -> None:
        raise NotImplementedError

    @rule(batch=st.lists(outputs, max_size=5))
    def append(self, batch: list[NewOutput]) -> None:
        ids = self.store.append(batch).result()
        assert ids == list(range(self.last + 1, self.last + 1 + len(batch)))
        for output_id, output in zip(ids, batch, strict=True):
            self.rows[output_id] = (self.clock.now, plain(output))
        self.last += len(batch)

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        output_id = data.draw(st.integers(1, self.last + 1))
        namespace = data.draw(st.sampled_from(PATHS))
        if output_id in self.rows and self.rows[output_id][1]["namespace"] == namespace:
            gone = self.store.forget(namespace, output_id)
            assert (gone.written_at, plain(gone.output)) == self.rows.pop(output_id)
        else:
            with pytest.raises(UnknownOutputError):
                self.store.forget(namespace, output_id)

    @precondition(lambda self: self.last in self.rows)
    @rule()
    def forget_the_newest(self) -> None:
        self.store.forget(self.rows.pop(self.last)[1]["namespace"], self.last)

    @rule(seconds=st.integers(0, 6))
    def time_passes(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule()
    def expire(self) -> None:
        now = self.clock.now
        due = {i for i, (at, o) in self.rows.items() if o["ttl_seconds"] and at + o["ttl_seconds"] <= now}
        assert {s.output_id for s in self.store.expire(now)} == due
        for output_id in due:
            del self.rows[output_id]

    @rule(path=st.sampled_from(PATHS), name=st.sampled_from("xy"), value=st.binary(max_size=3000))
    def put_state(self, path: str, name: str, value: bytes) -> None:
        self.store.put_state(path, name, value)
        self.states[path, name] = value

    @rule(path=st.sampled_from([None, *PATHS]), data=st.data())
    def scan_while_it_changes(self, path: str | None, data: st.DataObject) -> None:
        """Drawn half, then rows go and come, then the rest is drawn: still the first moment's rows."""
        expected = [i for i in self.rows if path in (None, self.rows[i][1]["namespace"])]
        kept = dict(self.rows)
        scan = self.store.scan(path)
        drawn: list[StoredOutput] = []
        for _ in range(data.draw(st.integers(1, 3))):
            drawn += [stored for stored in [next(scan, None)] if stored is not None]
        if expected and self.rows:
            victim = data.draw(st.sampled_from(sorted(self.rows)))
            self.store.forget(self.rows.pop(victim)[1]["namespace"], victim)
        self.append(data.draw(st.lists(outputs, max_size=1)))
        drawn += scan
        assert [s.output_id for s in drawn] == expected
        assert [(s.written_at, plain(s.output)) for s in drawn] == [kept[i] for i in expected]

    @invariant()
    def everything_agrees(self) -> None:
        if not hasattr(self, "store"):
            return
        self.store.check()
        found = {s.output_id: (s.written_at, plain(s.output)) for s in self.store.scan()}
        assert found == self.rows
        assert list(found) == sorted(found)
        for (path, name), value in self.states.items():
            assert self.store.get_state(path, name) == value
        stats = self.store.stats()
        contents = {(o["namespace"], *o["token_ids"]) for _, o in self.rows.values()}
        tokens = sum(len(o["token_ids"]) for _, o in self.rows.values())
        assert (stats.outputs, stats.payloads, stats.tokens) == (len(self.rows), len(contents), tokens)
        assert stats.last_lsn == self.last

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


class MemoryMachine(StoreMachine):
    def start(self) -> None:
        self.store = MemoryStore(clock=self.clock)


class LmdbMachine(StoreMachine):
    def start(self) -> None:
        if not hasattr(self, "folder"):
            self.folder = tempfile.TemporaryDirectory(prefix="store-model-")
        # the smallest map, so that growth happens within an example
        self.store = LmdbStore(
            self.folder.name, clock=self.clock, map_bytes_initial=1, limit_bytes=16 << 20, sync=False
        )

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.start()

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            self.folder.cleanup()


_SETTINGS = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestMemoryModel = MemoryMachine.TestCase
TestMemoryModel.settings = _SETTINGS
TestLmdbModel = LmdbMachine.TestCase
TestLmdbModel.settings = _SETTINGS

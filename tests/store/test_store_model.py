"""Model-based tests: random sequences of calls compared with a dictionary; check() after every step."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from store_testing import Clock, find, make_output, node_id_of, plain

from suffixsvc.errors import InvalidInputError, ManifestError, UnknownNamespaceError
from suffixsvc.log_types import LogChanges
from suffixsvc.store import LmdbStore, MemoryStore
from suffixsvc.store.base import Store
from suffixsvc.store.records.keys import generated_uuid
from suffixsvc.types import (
    IncompleteOutput,
    NamespaceRecord,
    NewOutput,
    OutputId,
    StoredOutput,
    repeated_in,
)
from support.long_form import rounds

PATHS = ("a", "a/b", "z")
#: b"" for a generated uuid, and few others, so that they repeat
UUIDS = (b"", b"", b"", bytes([1] * 16), bytes([2] * 16), bytes([255] * 16))
SESSIONS = ("", "s", "another")

outputs = st.builds(
    make_output,
    # few contents, so that payloads are shared often
    tokens=st.sampled_from([(1,), (1, 1), (1, 2), tuple(range(9)), tuple(range(3000))]),
    namespace=st.sampled_from(PATHS),
    tail=st.lists(st.integers(0, 2**31 - 1), max_size=3),
    labels=st.dictionaries(st.sampled_from("abc"), st.text(max_size=3), max_size=2),
    incomplete=st.booleans(),
    corpus=st.booleans(),
    ttl_seconds=st.sampled_from([0, 0, 1, 5, 2**32 - 1]),
    uuid=st.sampled_from(UUIDS),
    session_id=st.sampled_from(SESSIONS),
)


class Reader:
    """Contents of namespaces, and the changes since, applied twice."""

    def __init__(self, store: Store, paths: Collection[str]) -> None:
        self.position = store.position()
        self.generations = {path: store.generation(path) for path in paths}
        self.outputs = {s.output_id: plain(s.output) for path in paths for s in store.scan(path)}

    def catch_up(self, store: Store) -> None:
        """Apply changes up to the end of the log."""
        while self.position != store.position():
            found = store.changes(self.position, self.generations.values())
            assert found is not None
            self.apply(found)
            self.apply(found)
            self.position = found.position

    def apply(self, found: LogChanges) -> None:
        """Apply changes once."""
        numbers = {number: path for path, number in self.generations.items()}
        for number, stored in found.outputs:
            assert numbers[number] == stored.output.namespace
            self.outputs[stored.output_id] = plain(stored.output)
        for deletion in found.deletions:
            path = numbers[deletion.generation]
            for i in [i for i, output in self.outputs.items() if output["namespace"] == path]:
                if deletion.output_id in (0, i):
                    del self.outputs[i]


class StoreMachine(RuleBasedStateMachine):
    """Rules applied to both stores."""

    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock(1_000_000.0)
        self.rows: dict[int, tuple[float, dict[str, Any]]] = {}
        self.states: dict[tuple[str, str], bytes] = {}
        #: the uuid and the session of each row
        self.identities: dict[OutputId, tuple[bytes, str]] = {}
        self.paths: set[str] = set()
        self.last = 0
        self.names = 0
        self.reader: Reader | None = None

    @initialize()
    def open(self) -> None:
        self.start()
        for path in PATHS:
            self.add_namespace(path)

    @rule(path=st.sampled_from(PATHS))
    def add_namespace(self, path: str) -> None:
        self.store.add_namespace(NamespaceRecord(path))
        self.paths.add(path)

    @rule(path=st.sampled_from(PATHS))
    def delete_namespace(self, path: str) -> None:
        """Its rows and states are deleted, those of namespaces below it are not; its path is free again."""
        if self.is_unknown(path, lambda: self.store.delete_namespace(path)):
            return
        deleted = [i for i, (_, output) in self.rows.items() if output["namespace"] == path]
        assert self.store.delete_namespace(path) == len(deleted)
        for output_id in deleted:
            self.take(output_id)
        self.last += 1 - len(deleted)  # one deletion is logged for all of them
        self.states = {key: value for key, value in self.states.items() if key[0] != path}
        self.paths.remove(path)

    def is_unknown(self, path: str, call: Callable[[], object]) -> bool:
        """Check that a missing namespace raises; return whether it is missing."""
        if path in self.paths:
            return False
        with pytest.raises(UnknownNamespaceError):
            call()
        return True

    def take(self, output_id: OutputId) -> tuple[float, dict[str, Any]]:
        """Remove a deleted row from the model; its deletion takes an LSN, too."""
        self.last += 1
        del self.identities[output_id]
        return self.rows.pop(output_id)

    def start(self) -> None:
        raise NotImplementedError

    @rule(batch=st.lists(outputs, max_size=5), create=st.booleans())
    def append(self, batch: list[NewOutput], create: bool = False) -> None:
        """All outputs, or none if a namespace is unknown or a uuid names another output."""
        used = {output.namespace for output in batch}
        made = [NamespaceRecord(path) for path in sorted(used)] if create else []
        expected = self.ids_of(batch)
        if not create and not used <= self.paths:
            with pytest.raises(UnknownNamespaceError):
                self.store.append(batch).result()
            return
        if expected is None:
            with pytest.raises(InvalidInputError, match="uuid"):
                self.store.append(batch, made).result()
            return
        ids = self.store.append(batch, made).result()
        self.paths |= used
        assert ids == expected
        first = self.last + 1
        seen: set[OutputId] = set()
        assert repeated_in(ids) == [n for n, i in enumerate(ids) if i < first or i in seen or seen.add(i)]
        for output_id, output in zip(ids, batch, strict=True):
            if output_id > self.last:
                self.rows[output_id] = (self.clock.now, plain(output))
                uuid = output.uuid or generated_uuid(node_id_of(self.store), output_id)
                self.identities[output_id] = uuid, output.session_id
                self.last = output_id

    def ids_of(self, batch: list[NewOutput]) -> list[OutputId] | None:
        """Return the expected ids of an append; None if a uuid names another output or is reserved."""
        named = {(self.rows[i][1]["namespace"], uuid): i for i, (uuid, _) in self.identities.items()}
        contents = {i: output["token_ids"] for i, (_, output) in self.rows.items()}
        coming = {generated_uuid(node_id_of(self.store), self.last + n) for n in range(1, 10)}
        ids = []
        last = self.last
        for output in batch:
            tokens = output.token_ids.tolist()
            there = named.get((output.namespace, output.uuid)) if output.uuid else None
            if there is not None:
                if contents[there] != tokens:
                    return None
                ids.append(there)
                continue
            if output.uuid in coming:
                return None
            last += 1
            ids.append(last)
            contents[last] = tokens
            if output.uuid:
                named[output.namespace, output.uuid] = last
        return ids

    @rule(data=st.data(), namespace=st.sampled_from(PATHS), same=st.booleans())
    def send_again_by_a_generated_uuid(self, data: st.DataObject, namespace: str, same: bool) -> None:
        """An existing, forgotten or future row; in its own namespace or another."""
        output_id = data.draw(st.integers(1, self.last + 2))
        row = self.rows.get(output_id)
        tokens = row[1]["token_ids"] if row is not None and same else [77, 7]
        uuid = generated_uuid(node_id_of(self.store), output_id)
        self.append([make_output(tokens, namespace=namespace, uuid=uuid)])

    @rule(data=st.data(), namespace=st.sampled_from(PATHS))
    def forget_many(self, data: st.DataObject, namespace: str) -> None:
        ids = data.draw(st.lists(st.integers(1, self.last + 1), max_size=6))
        if self.is_unknown(namespace, lambda: self.store.forget_many(namespace, ids)):
            return
        there = {i for i in ids if i in self.rows and self.rows[i][1]["namespace"] == namespace}
        deleted = self.store.forget_many(namespace, ids)
        assert [(s.output_id, (s.written_at, plain(s.output))) for s in deleted] == [
            (i, self.take(i)) for i in sorted(there)
        ]

    @precondition(lambda self: self.rows)
    @rule()
    def forget_the_newest(self) -> None:
        newest = max(self.rows)
        self.store.forget_many(self.take(newest)[1]["namespace"], [newest])

    @rule(seconds=st.integers(0, 6))
    def time_passes(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule()
    def expire(self) -> None:
        now = self.clock.now
        due = {i for i, (at, o) in self.rows.items() if o["ttl_seconds"] and at + o["ttl_seconds"] <= now}
        assert {s.output_id for s in self.store.expire(now)} == due
        for output_id in due:
            self.take(output_id)

    @rule(path=st.sampled_from(PATHS), name=st.sampled_from("xy"), value=st.binary(max_size=3000))
    def put_state(self, path: str, name: str, value: bytes) -> None:
        if self.is_unknown(path, lambda: self.store.put_state(path, name, value)):
            return
        self.store.put_state(path, name, value)
        self.states[path, name] = value

    @rule(paths=st.sets(st.sampled_from(PATHS), min_size=1))
    def begin_to_follow(self, paths: set[str]) -> None:
        """A reader takes the contents of some namespaces, and applies what changes from then on."""
        self.reader = Reader(self.store, paths & self.paths)

    @precondition(lambda self: self.reader is not None)
    @rule()
    def follow(self) -> None:
        assert self.reader is not None
        self.reader.catch_up(self.store)
        paths = {path for path, number in self.reader.generations.items() if path in self.paths}
        paths = {path for path in paths if self.store.generation(path) == self.reader.generations[path]}
        expected = {i: row for i, (_, row) in self.rows.items() if row["namespace"] in paths}
        assert self.reader.outputs == expected

    @rule(path=st.sampled_from([None, *PATHS]), data=st.data())
    def scan_while_it_changes(self, path: str | None, data: st.DataObject) -> None:
        """A scan interrupted by deletions and appends yields the rows of its start."""
        if path is not None and self.is_unknown(path, lambda: list(self.store.scan(path))):
            return
        expected = [i for i in self.rows if path in (None, self.rows[i][1]["namespace"])]
        snapshot = dict(self.rows)
        scan = self.store.scan(path)
        drawn: list[StoredOutput] = []
        for _ in range(data.draw(st.integers(1, 3))):
            drawn += [stored for stored in [next(scan, None)] if stored is not None]
        if expected and self.rows:
            output_id = data.draw(st.sampled_from(sorted(self.rows)))
            self.store.forget_many(self.take(output_id)[1]["namespace"], [output_id])
        if data.draw(st.booleans()):
            self.delete_namespace(data.draw(st.sampled_from(sorted(self.paths or PATHS))))
        self.append(data.draw(st.lists(outputs, max_size=1)))
        drawn += scan
        assert [s.output_id for s in drawn] == expected
        assert [(s.written_at, plain(s.output)) for s in drawn] == [snapshot[i] for i in expected]

    @rule(path=st.sampled_from(PATHS), most=st.integers(1, 4))
    def seal(self, path: str, most: int) -> None:
        """Seal the oldest rows that no segment covers, up to the next segment."""
        if self.is_unknown(path, lambda: self.store.segments(path)):
            return
        ours = [i for i in sorted(self.rows) if self.rows[i][1]["namespace"] == path]
        records = self.store.segments(path)
        free = [i for i in ours if not any(record.covers(i) for record in records)]
        if free:
            ends = [record.first_lsn for record in records if record.first_lsn > free[0]]
            part = [i for i in free if i < min(ends, default=self.last + 1)][:most]
            sizes = {i: len(self.rows[i][1]["token_ids"]) for i in part}
            record = self.store.add_segment(path, f"s{self.names}", 1, sizes)
            assert (record.first_lsn, record.last_lsn, record.outputs) == (part[0], part[-1], len(part))
            self.names += 1

    @rule(path=st.sampled_from(PATHS), data=st.data())
    def merge_or_drop(self, path: str, data: st.DataObject) -> None:
        if self.is_unknown(path, lambda: self.store.tombstones(path)):
            return
        records = self.store.segments(path)
        if not records:
            return
        first = data.draw(st.integers(0, len(records) - 1))
        part = records[first : data.draw(st.integers(first, len(records) - 1)) + 1]
        names = [record.name for record in part]
        buried = self.store.tombstones(path)
        between = [
            i
            for i, (_, output) in self.rows.items()
            if output["namespace"] == path
            and part[0].first_lsn <= i <= part[-1].last_lsn
            and not any(record.covers(i) for record in part)
        ]
        if data.draw(st.booleans()):
            self.store.drop_segments(path, names)
            left = {i for i in buried if not any(record.covers(i) for record in part)}
        elif between:
            with pytest.raises(ManifestError):
                self.store.replace_segments(path, names, f"s{self.names}", 1, list(buried))
            left = set(buried)
        else:
            self.store.replace_segments(path, names, f"s{self.names}", 1, list(buried))
            left = {i for i in buried if not any(record.covers(i) for record in part)}
            self.names += 1
        assert self.store.tombstones(path).keys() == left

    @invariant()
    def everything_agrees(self) -> None:
        if not hasattr(self, "store"):
            return
        self.store.check()
        found = {s.output_id: (s.written_at, plain(s.output)) for s in self.store.scan()}
        assert found == self.rows
        assert list(found) == sorted(found)
        assert {n.path for n in self.store.namespaces()} == self.paths
        self.identities_agree()
        for (path, name), value in self.states.items():
            assert self.store.get_state(path, name) == value
        stats = self.store.stats()
        contents = {(o["namespace"], *o["token_ids"]) for _, o in self.rows.values()}
        tokens = sum(len(o["token_ids"]) for _, o in self.rows.values())
        assert (stats.outputs, stats.payloads, stats.tokens) == (len(self.rows), len(contents), tokens)
        assert stats.last_lsn == self.last

    def identities_agree(self) -> None:
        """Every row is found by its uuid, in its own namespace only, and incomplete ones by session."""
        written = {s.output_id: (s.output.uuid, s.output.session_id) for s in self.store.scan()}
        assert written == self.identities
        left: dict[str, list[IncompleteOutput]] = {session: [] for session in SESSIONS if session}
        for output_id, (uuid, session) in self.identities.items():
            row = self.rows[output_id][1]
            assert find(self.store, row["namespace"], uuid) == output_id
            if row["incomplete"] and session:
                left[session].append(IncompleteOutput(output_id, row["namespace"], uuid))
        assert {session: self.store.incomplete(session) for session in left} == left
        named = {(self.rows[i][1]["namespace"], uuid) for i, (uuid, _) in self.identities.items()}
        for path in self.paths:
            for uuid in set(UUIDS) - {b""}:
                assert (find(self.store, path, uuid) is not None) == ((path, uuid) in named)

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
    max_examples=rounds(20, full=60),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestMemoryModel = MemoryMachine.TestCase
TestMemoryModel.settings = _SETTINGS
TestLmdbModel = LmdbMachine.TestCase
TestLmdbModel.settings = _SETTINGS

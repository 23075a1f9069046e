"""The RPC Delete over a real server: selections, both stages, sessions of the service, followers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from suffixsvc import Deletion, NewOutput, Policies, Policy, Selection, SuffixCache
from suffixsvc.errors import (
    InvalidInputError,
    InvalidLabelsError,
    LimitExceededError,
    NoStoreError,
    UnknownNamespaceError,
)
from suffixsvc.types import DeletionReceipt, FollowerName
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.wire import selection_from_proto, selection_to_proto
from suffixsvc_client import SuffixClient
from support.engine_parts import parts_of
from support.serving import eventually
from support.watching import Held, WatchReader, hello, watched

PATH = "acme/sql"
#: four bytes of every id are odd, so that no other number of the files looks like one
SECRET = [0x41434507 + 2 * n for n in range(40)]


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[SuffixCache]:
    policies = Policies({"quiet": Policy(no_store=True)})
    with SuffixCache(tmp_path / "d", background=False, policies=policies) as opened:
        yield opened
        opened.check()


@pytest.fixture
def client(cache: SuffixCache) -> Iterator[SuffixClient]:
    with watched(cache) as address, SuffixClient(address) as connected:
        yield connected


def test_a_selection_is_the_same_after_the_wire() -> None:
    for selection in (
        Selection("a/b"),
        Selection(output_ids=[1, 2**63 - 1]),
        Selection("a", session_id="s", labels={"x": "", "é": "y"}),
        Selection(principal=""),
        Selection(principal="ann", older_than_seconds=0),
        Selection(older_than_seconds=1.5),
    ):
        again = selection_from_proto(
            pb.Selection.FromString(selection_to_proto(selection).SerializeToString())
        )
        assert again == selection


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (pb.Selection(), InvalidInputError),
        (pb.Selection(namespace="a//b"), InvalidInputError),
        (pb.Selection(output_ids=[0]), InvalidInputError),
        (pb.Selection(output_ids=[2**64 - 1]), InvalidInputError),
        (pb.Selection(labels={"": "x"}), InvalidLabelsError),
        (pb.Selection(principal="a b"), InvalidInputError),
        (pb.Selection(older_than_seconds=float("nan")), InvalidInputError),
        (pb.Selection(older_than_seconds=-1), InvalidInputError),
    ],
)
def test_a_malformed_selection_from_the_wire_is_refused(
    client: SuffixClient, message: pb.Selection, error: type[Exception]
) -> None:
    with pytest.raises(error):
        selection_from_proto(message)


def test_criteria_over_the_wire(client: SuffixClient, cache: SuffixCache) -> None:
    namespace = client.namespace(PATH)
    first = namespace.add_output(SECRET, labels={"agent": "x"})
    second = namespace.add_output(SECRET[:9], labels={"agent": "y"})
    client.namespace("b").add_output([1, 2], labels={"agent": "y"})
    tagged = NewOutput(PATH, np.arange(9, dtype=np.int32), (9,), np.empty(0, np.int32), principal="ann")
    cache.namespace(PATH).add_outputs([tagged])
    assert client.delete(Selection(labels={"agent": "y"})) == Deletion(2, 0, (PATH, "b"))
    assert namespace.delete(output_ids=[second]) == Deletion()
    assert namespace.delete(principal="ann").outputs == 1
    assert client.delete(Selection(older_than_seconds=3600)) == Deletion()
    assert namespace.delete(output_ids=[first, second], superseded=True).outputs == 1
    with pytest.raises(UnknownNamespaceError):
        client.delete(Selection("nowhere"))
    with pytest.raises(UnknownNamespaceError):
        client.namespace("nowhere").delete()


def test_from_disk_answers_when_no_file_holds_it(client: SuffixClient, tmp_path: Path) -> None:
    namespace = client.namespace(PATH)
    namespace.add_output(SECRET, labels={"agent": "x"})
    kept = [7, 8, 0x51515151]
    namespace.add_output(kept)

    def holds(ids: list[int]) -> bool:
        raw = np.asarray(ids, "<i4").tobytes()
        return any(raw in path.read_bytes() for path in (tmp_path / "d").rglob("*") if path.is_file())

    assert holds(SECRET[:3])
    first = client.delete(Selection(labels={"agent": "x"}))
    assert (first.outputs, first.from_disk) == (1, False)
    assert holds(SECRET[:3])
    assert client.stats().erasure_due
    assert client.delete(Selection(labels={"agent": "x"}), from_disk=True) == Deletion(from_disk=True)
    assert not any(holds(SECRET[at : at + 2]) for at in range(len(SECRET) - 1))
    assert holds(kept)
    assert not client.stats().erasure_due


def test_a_session_of_the_service_is_retracted_by_its_id(client: SuffixClient, cache: SuffixCache) -> None:
    namespace = client.namespace(PATH)
    mine = namespace.open_session([1], session_id="mine")
    mine.step(SECRET)
    other = namespace.open_session([1], session_id="other")
    assert len(other.step(SECRET[:9]))
    assert client.delete(Selection(session_id="mine")) == Deletion(0, 1, (PATH,))
    assert len(namespace.open_session([1]).step(SECRET[8:20])) == 0
    mine.step([5, 6, 7])
    assert mine.close() is None
    stored = other.close()
    assert [row.output_id for row in parts_of(cache).store.scan()] == [stored]
    assert client.delete(Selection(session_id="other")).outputs == 1


def test_incomplete_outputs_of_a_session_are_deleted_with_it(
    client: SuffixClient, cache: SuffixCache
) -> None:
    session = cache.namespace(PATH).open_session([1], session_id="gone")
    session.step(SECRET)
    session.close(incomplete=True)
    assert cache.incomplete_outputs("gone")
    assert client.delete(Selection(session_id="gone")).outputs == 1
    assert cache.incomplete_outputs("gone") == []


def test_receipts_of_several_namespaces_are_one(client: SuffixClient, cache: SuffixCache) -> None:
    for path in ("a", "b", "c"):
        client.namespace(path).add_output([1, 2, 3], labels={"agent": "x" if path != "c" else "y"})
    with (
        watched(cache) as address,
        SuffixClient(address) as near,
        WatchReader(address, hello("both")) as both,
        WatchReader(address, hello("mute"), reports=False) as mute,
        WatchReader(address, hello("c")) as third,
    ):
        for reader, paths in ((both, "ab"), (mute, "b"), (third, "c")):
            for path in paths:
                reader.follow(path)
                reader.until(lambda r=reader, p=path: r.held.get(p, Held()).complete, "contents")  # type: ignore[misc]
        eventually(lambda: len(near.stats().followers) == 3, "all follow")
        deletion = near.delete(Selection(labels={"agent": "x"}))
        assert deletion.namespaces == ("a", "b")
        assert deletion.receipt == DeletionReceipt(
            (FollowerName("both", "a test"),), (FollowerName("mute", "a test"),)
        )


def test_a_policy_of_no_store_over_the_wire(client: SuffixClient, cache: SuffixCache) -> None:
    with pytest.raises(NoStoreError, match="quiet"):
        client.namespace("quiet").add_output([1, 2, 3])
    session = client.namespace("quiet").open_session([1])
    session.step(SECRET)
    assert len(client.namespace("quiet").open_session([1]).step(SECRET[:9])) == 0
    assert session.step(SECRET[:9]).token_ids.tolist()[:3] == SECRET[9:12]
    assert session.close() is None
    assert cache.stats().outputs == 0


def test_too_many_ids_are_refused_before_they_are_read(client: SuffixClient) -> None:
    client.namespace(PATH).add_output([1])
    with pytest.raises(LimitExceededError, match="several calls"):
        client.delete(Selection(PATH, output_ids=range(1, 20_000)))
    assert client.namespace(PATH).stats().outputs == 1

"""Receipts of deletions: which followers have applied one, and which are silent."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from suffixsvc import SuffixCache
from suffixsvc.access.caller import OPERATOR_CALLER
from suffixsvc.log_types import LogPosition
from suffixsvc.service.followers.registry import FollowerRegistry
from suffixsvc.types import DeletionReceipt, FollowerName
from suffixsvc_client import SuffixClient
from support.serving import eventually
from support.watching import Held, WatchReader, hello, watched

PATH = "acme/sql"


def follow(reader: WatchReader) -> None:
    reader.follow(PATH)
    reader.until(lambda: reader.held.get(PATH, Held()).complete, "contents")


def test_without_followers_a_receipt_is_empty_and_nothing_waits(tmp_path: Path) -> None:
    with SuffixCache(tmp_path / "d") as cache, watched(cache) as address, SuffixClient(address) as client:
        namespace = client.namespace(PATH)
        first = namespace.add_output([1])
        assert namespace.delete(output_ids=[first]).receipt == DeletionReceipt()
        namespace.add_output([1])
        deleted = client.delete_namespace(PATH)
        assert (deleted, deleted.receipt) == (1, DeletionReceipt())


def test_an_acknowledging_and_a_silent_follower(tmp_path: Path) -> None:
    with SuffixCache(tmp_path / "d") as cache, watched(cache) as address, SuffixClient(address) as client:
        namespace = client.namespace(PATH)
        outputs = [namespace.add_output([n]) for n in range(3)]
        client.namespace("b").add_output([1])
        with (
            WatchReader(address, hello("answers")) as answers,
            WatchReader(address, hello("mute"), reports=False) as mute,
            WatchReader(address, hello("elsewhere")) as elsewhere,
        ):
            follow(answers)
            follow(mute)
            elsewhere.follow("b")
            elsewhere.until(lambda: "b" in elsewhere.held, "contents")
            receipt = namespace.delete(output_ids=[outputs[0]]).receipt
            assert receipt == DeletionReceipt(
                (FollowerName("answers", "a test"),), (FollowerName("mute", "a test"),)
            )
            assert outputs[0] in answers.held[PATH].dead
            # it forgets the namespace, and so holds nothing that was deleted
            mute.unfollow(PATH)
            eventually(
                lambda: [each.follower_id for each in namespace.stats().followers] == ["answers"],
                "it follows no more",
            )
            assert namespace.delete(output_ids=[outputs[1]]).receipt == DeletionReceipt(
                (FollowerName("answers", "a test"),)
            )
            deleted = client.delete_namespace(PATH)
            assert deleted == 1
            assert deleted.receipt == DeletionReceipt((FollowerName("answers", "a test"),))
            answers.until(lambda: not answers.held[PATH].hot, "nothing is left")


def test_a_follower_that_vanished_is_silent_for_a_lease(tmp_path: Path) -> None:
    with (
        SuffixCache(tmp_path / "d") as cache,
        watched(cache, lease_seconds=3) as address,
        SuffixClient(address) as client,
    ):
        namespace = client.namespace(PATH)
        outputs = [namespace.add_output([n]) for n in range(3)]
        with WatchReader(address, hello("gone")) as reader:
            follow(reader)
        eventually(lambda: not client.stats().followers[0].connected, "it has gone")
        assert namespace.delete(output_ids=[outputs[0]]).receipt.silent == (FollowerName("gone", "a test"),)
        eventually(lambda: not client.stats().followers, "its lease is over")
        assert namespace.delete(output_ids=[outputs[1]]).receipt == DeletionReceipt()


def test_positions_that_were_not_sent_do_not_count(tmp_path: Path) -> None:
    with SuffixCache(tmp_path / "d") as cache, watched(cache) as address, SuffixClient(address) as client:
        namespace = client.namespace(PATH)
        output = namespace.add_output([1])
        with WatchReader(address, hello("liar"), reports=False) as reader:
            follow(reader)
            at = cache.feed.position()
            reader.report(LogPosition(at.node_id, at.lsn + 1000, at.run))
            reader.report(LogPosition(at.node_id ^ 1, at.lsn, at.run))
            eventually(lambda: client.stats().followers[0].held_bytes, "the reports have arrived")
            assert client.stats().followers[0].applied_lsn == 0
            assert namespace.delete(output_ids=[output]).receipt.silent


# -------------------------------------------------------------------------------------- the registry


NAME = FollowerName("a", "")


@pytest.fixture
def registry() -> FollowerRegistry:
    return FollowerRegistry(lease_seconds=300)


def test_a_receipt_waits_for_the_report(registry: FollowerRegistry) -> None:
    woken = threading.Event()
    follower = registry.connect(NAME, OPERATOR_CALLER, woken.set, lambda: None)
    registry.follow(follower, PATH)
    found: list[DeletionReceipt] = []
    waiting = threading.Thread(
        target=lambda: found.append(registry.receipt(PATH, lambda: LogPosition(1, 5, 1), 300))
    )
    waiting.start()
    assert woken.wait(60)
    assert registry.awaited == 5
    registry.report(follower, 4, 0, 0)
    assert waiting.is_alive()
    registry.report(follower, 5, 0, 0)
    waiting.join()
    assert found == [DeletionReceipt((NAME,))]


def test_a_drain_ends_the_wait(registry: FollowerRegistry) -> None:
    follower = registry.connect(NAME, OPERATOR_CALLER, registry.close, lambda: None)
    registry.follow(follower, PATH)
    assert registry.receipt(PATH, lambda: LogPosition(1, 5, 1), 300).silent == (NAME,)


def test_what_an_earlier_stream_followed_counts_until_the_first_report(registry: FollowerRegistry) -> None:
    first = registry.connect(NAME, OPERATOR_CALLER, lambda: None, lambda: None)
    registry.follow(first, PATH)
    registry.disconnect(first)
    second = registry.connect(NAME, OPERATOR_CALLER, lambda: None, lambda: None)
    assert registry.receipt(PATH, lambda: LogPosition(1, 5, 1), 0.01).silent == (NAME,)
    registry.report(second, 0, 0, 0)
    assert registry.receipt(PATH, lambda: LogPosition(1, 5, 1), 0.01) == DeletionReceipt()


def test_followers_that_left_are_bounded(registry: FollowerRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suffixsvc.service.followers.registry._MAX_VANISHED", 3)
    for n in range(10):
        registry.disconnect(
            registry.connect(FollowerName(str(n), ""), OPERATOR_CALLER, lambda: None, lambda: None)
        )
    assert [state.name.follower_id for state in registry.states()] == ["7", "8", "9"]

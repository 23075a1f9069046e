"""Calls of Watch: hello, admission, drain, streams of one follower, deadlines, segment files, statistics."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path

import grpc
import pytest
import xxhash

from suffixsvc import Limits, SuffixCache
from suffixsvc.errors import (
    InvalidInputError,
    LimitExceededError,
    ServiceUnavailableError,
    SuffixError,
    UnknownNamespaceError,
    UnknownSegmentError,
    UnsupportedVersionError,
)
from suffixsvc.log_types import LogPosition
from suffixsvc.log_wire import WATCH_PROTOCOL
from suffixsvc.service import servicer
from suffixsvc.service.calls import admission
from suffixsvc.service.followers import requests as requests_module
from suffixsvc.service.followers import segment_files
from suffixsvc.service.listeners.listen import parse_address
from suffixsvc.service.messages.requests import MAX_USES, request_readers
from suffixsvc.service.server import SuffixServer
from suffixsvc.v1 import suffix_cache_pb2_grpc
from suffixsvc.v1 import watch_pb2 as pb
from suffixsvc_client import SuffixClient
from suffixsvc_client.transport.interface import error_from_rpc
from support.command_line import run_verb
from support.idle_calls import connection
from support.serving import PATIENCE_S, eventually, socket_dir
from support.watching import LEASE_SECONDS, WatchCall, WatchReader, hello, watched

PATH = "acme/sql"
NOWHERE = LogPosition(0, 0, 0)


# ---------------------------------------------------------------------------------------------- hello


def test_the_welcome(tmp_path: Path) -> None:
    with SuffixCache(tmp_path / "d") as cache, watched(cache) as address, SuffixClient(address) as client:
        cache.namespace("docs", "t").add_output([1])
        cache.read_by_default(["docs"])
        with WatchReader(address) as reader:
            welcome = reader.welcome
            assert welcome.protocol == WATCH_PROTOCOL
            assert welcome.instance_id == client.server_info().instance_id
            assert welcome.lease_seconds == LEASE_SECONDS
            assert Path(welcome.segment_folder) == tmp_path / "d" / "segments"
            assert [(each.namespace, each.tokenizer) for each in welcome.default_reads] == [("docs", "t")]
        assert "watch" in client.server_info().features


HELLO = hello("a").hello
MALFORMED: dict[str, tuple[list[pb.WatchRequest], type[SuffixError], str]] = {
    "an older follower": ([hello("a", protocol=0)], UnsupportedVersionError, "Upgrade the follower"),
    "a newer follower": ([hello("a", protocol=2)], UnsupportedVersionError, "Upgrade the service"),
    "no hello": (
        [pb.WatchRequest(follow=pb.FollowNamespace(namespace="a"))],
        InvalidInputError,
        "must be a hello",
    ),
    "nothing": ([pb.WatchRequest()], InvalidInputError, "must be a hello"),
    "no id": ([pb.WatchRequest(hello=pb.WatchHello(protocol=1))], InvalidInputError, "follower_id"),
    "a long id": ([hello("é" * 65)], InvalidInputError, "follower_id"),
    "an id with a line end": ([hello("a\nb")], InvalidInputError, "follower_id"),
    "a long description": (
        [pb.WatchRequest(hello=pb.WatchHello(protocol=1, follower_id="a", description="x" * 201))],
        InvalidInputError,
        "description",
    ),
    "a second hello": ([hello("a"), hello("a")], InvalidInputError, "one hello"),
    "an empty message": ([hello("a"), pb.WatchRequest()], InvalidInputError, "must hold a request"),
    "a request that no valid path is as long as": (
        [hello("a"), pb.WatchRequest(follow=pb.FollowNamespace(namespace="a", tokenizer="t" * 1024))],
        InvalidInputError,
        "at most 1024 bytes",
    ),
    "the end of such a request": (
        [hello("a"), pb.WatchRequest(unfollow=pb.UnfollowNamespace(namespace="a" * 1024))],
        InvalidInputError,
        "at most 1024 bytes",
    ),
    "torn ids": (
        [
            hello("a"),
            pb.WatchRequest(report=pb.FollowerReport(used=[pb.NamespaceUse(output_ids=b"123")])),
        ],
        InvalidInputError,
        "output_ids",
    ),
    "too many namespaces in a report": (
        [
            hello("a"),
            pb.WatchRequest(
                report=pb.FollowerReport(used=[pb.NamespaceUse(namespace="abcd")] * (MAX_USES + 1))
            ),
        ],
        LimitExceededError,
        "report.used",
    ),
    "too large a count": (
        [hello("a"), pb.WatchRequest(report=pb.FollowerReport(used=[pb.NamespaceUse(num_steps=1 << 40)]))],
        InvalidInputError,
        "counters",
    ),
    "a negative sum": (
        [hello("a"), pb.WatchRequest(report=pb.FollowerReport(used=[pb.NamespaceUse(verify_steps=-1)]))],
        InvalidInputError,
        "counters",
    ),
    "a sum that is no number": (
        [
            hello("a"),
            pb.WatchRequest(report=pb.FollowerReport(used=[pb.NamespaceUse(avoided_seconds=math.nan)])),
        ],
        InvalidInputError,
        "counters",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_messages_end_the_stream_with_the_reason(cache: SuffixCache, case: str) -> None:
    messages, expected, said = MALFORMED[case]
    with watched(cache) as address, WatchCall(address, *messages) as call:
        error = call.error()
        assert type(error) is expected
        assert said in str(error)


def test_reports_have_a_bounded_number_of_outputs(
    cache: SuffixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_module, "MAX_USED_OUTPUTS", 3)
    with watched(cache) as address, WatchCall(address, hello()) as call:
        call.report(NOWHERE, *[pb.NamespaceUse(namespace="a", output_ids=bytes(16))] * 2)
        assert isinstance(call.error(), LimitExceededError)


def test_the_status_of_another_version_is_a_failed_precondition(cache: SuffixCache) -> None:
    with watched(cache) as address, WatchCall(address, hello(protocol=9)) as call:
        with pytest.raises(grpc.RpcError) as raised:
            call.next()
        assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION


# ------------------------------------------------------------------------------------ life of a stream


def test_followers_are_limited(cache: SuffixCache) -> None:
    with watched(cache, max_followers=1) as address, WatchReader(address):
        with WatchCall(address, hello()) as second:
            error = second.error()
        assert isinstance(error, LimitExceededError)
        assert "--max-followers" in str(error)


def test_a_service_without_followers_says_so(cache: SuffixCache) -> None:
    with watched(cache, max_followers=0) as address, WatchCall(address, hello()) as call:
        error = call.error()
        assert isinstance(error, LimitExceededError)
        assert "allows no followers" in str(error)


def test_a_drain_ends_streams_at_once(cache: SuffixCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suffixsvc.service.server.STOP_GRACE_SECONDS", PATIENCE_S)
    with socket_dir() as folder:
        server = SuffixServer(cache, [parse_address(f"unix:{folder}/s")])
        [address] = server.start()
        with WatchCall(address, hello()) as call:
            call.follow(PATH)
            call.next()
            draining = threading.Thread(target=server.drain)
            draining.start()
            error = call.error()
            assert isinstance(error, ServiceUnavailableError)
            assert "shutting down" in str(error)
            draining.join()
        with WatchCall(address, hello()) as call:
            assert isinstance(call.error(), ServiceUnavailableError)


def test_a_follower_has_one_stream(cache: SuffixCache) -> None:
    with watched(cache) as address, WatchCall(address, hello("same")) as first:
        first.next()
        with WatchReader(address, hello("same")) as second, SuffixClient(address) as client:
            error = first.error()
            assert isinstance(error, ServiceUnavailableError)
            assert "another one has begun" in str(error)
            second.follow(PATH)
            second.until(lambda: PATH in second.held, "the second one works")
            assert [each.connected for each in client.stats().followers] == [True]


def test_a_follower_that_ends_its_stream(cache: SuffixCache) -> None:
    with watched(cache) as address, SuffixClient(address) as client, WatchCall(address, hello()) as call:
        call.next()
        call._requests.put(None)
        for _ in call.call:
            pass
        assert call.call.code() is grpc.StatusCode.OK
        [left] = client.stats().followers
        assert not left.connected
        eventually(lambda: not client.stats().followers, "it is forgotten a lease later")


def test_a_reply_that_is_not_read_ends_the_call(cache: SuffixCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servicer, "STALLED_SECONDS", 0.5)
    namespace = cache.namespace(PATH)
    for _ in range(8):
        namespace.add_output([7] * (1 << 18))
    with watched(cache) as address, SuffixClient(address) as client, WatchCall(address, hello()) as call:
        call.follow(PATH)
        call.next()
        eventually(lambda: not any(each.connected for each in client.stats().followers), "it is cancelled")


# -------------------------------------------------------------------------------------------- segments


def fetch(address: str, request: pb.FetchSegmentRequest) -> list[bytes]:
    with connection(address) as channel:
        stub = suffix_cache_pb2_grpc.SuffixCacheStub(channel)
        return [reply.data for reply in stub.FetchSegment(request, timeout=PATIENCE_S)]


def test_a_segment_is_fetched_from_any_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_files, "PIECE_BYTES", 1000)
    with SuffixCache(tmp_path / "d", background=False) as cache:
        cache.namespace(PATH).add_output(list(range(500)))
        cache.seal(PATH)
        with watched(cache) as address, WatchReader(address) as reader:
            reader.follow(PATH)
            reader.until(lambda: PATH in reader.held and reader.held[PATH].segments, "the manifest")
            [segment] = reader.held[PATH].segments
            name = segment.name
            data = (tmp_path / "d" / "segments" / name).read_bytes()
            assert len(data) == segment.file_bytes
            for offset in (0, 1, 999, 1000, len(data) - 1, len(data)):
                pieces = fetch(address, pb.FetchSegmentRequest(namespace=PATH, name=name, offset=offset))
                assert b"".join(pieces) == data[offset:]
                assert all(len(piece) <= 1000 for piece in pieces)
            for request, expected in (
                (pb.FetchSegmentRequest(namespace="b", name=name), UnknownNamespaceError),
                (pb.FetchSegmentRequest(namespace=PATH, name="../data.mdb"), UnknownSegmentError),
                (pb.FetchSegmentRequest(namespace=PATH, name=name, offset=len(data) + 1), InvalidInputError),
            ):
                with pytest.raises(grpc.RpcError) as raised:
                    fetch(address, request)
                assert type(error_from_rpc(raised.value)) is expected
            # merged while it is read
            with connection(address) as channel:
                stub = suffix_cache_pb2_grpc.SuffixCacheStub(channel)
                request = pb.FetchSegmentRequest(namespace=PATH, name=name)
                replies = stub.FetchSegment(request, timeout=PATIENCE_S)
                first = next(replies).data
                cache.namespace(PATH).add_output([5])
                cache.compact(PATH)
                assert not (tmp_path / "d" / "segments" / name).exists()
                assert first + b"".join(reply.data for reply in replies) == data
            with pytest.raises(grpc.RpcError) as raised:
                fetch(address, request)
            assert raised.value.code() is grpc.StatusCode.NOT_FOUND


def test_manifests_have_the_digests_of_the_headers(tmp_path: Path) -> None:
    with SuffixCache(tmp_path / "d", background=False) as cache:
        cache.namespace(PATH).add_output(list(range(500)))
        cache.seal(PATH)
        with watched(cache) as address, WatchCall(address, hello()) as call:
            call.follow(PATH)
            while (reply := call.next()).WhichOneof("reply") != "contents":
                pass
            [segment] = reply.contents.sealed.segments
            header = (tmp_path / "d" / "segments" / segment.name).read_bytes()[:512]
            assert segment.header_digest == xxhash.xxh3_128_digest(header)


def test_fetches_are_limited(tmp_path: Path) -> None:
    permits = admission.Admission(1)
    method = "/suffixsvc.v1.SuffixCache/FetchSegment"
    for _ in range(admission.MAX_FETCHES):
        permits.acquire(method, lambda: None)
    with pytest.raises(LimitExceededError):
        permits.acquire(method, lambda: None)


# ------------------------------------------------------------------------------------------ statistics


def test_statistics_list_the_followers(tmp_path: Path) -> None:
    with SuffixCache(tmp_path / "d") as cache, watched(cache) as address, SuffixClient(address) as client:
        cache.namespace(PATH).add_output([1])
        cache.namespace("b").add_output([1])
        with (
            WatchReader(address, hello("f-1")) as reader,
            WatchReader(address, hello("f-2"), reports=False) as mute,
        ):
            for path in (PATH, "b"):
                reader.follow(path)
            mute.follow("b")
            stats = lambda: {each.follower_id: each for each in client.stats().followers}  # noqa: E731
            eventually(lambda: stats()["f-1"].applied_lsn == cache.feed.position().lsn, "it reports")
            mute.until(lambda: "b" in mute.held, "contents")
            one, two = stats()["f-1"], stats()["f-2"]
            assert (one.namespaces, one.connected, one.lag) == ((PATH, "b"), True, 0)
            assert (one.description, one.held_bytes, one.mapped_bytes) == ("a test", 11, 22)
            assert (two.applied_lsn, two.lag) == (0, cache.feed.position().lsn)
            [of_path] = client.namespace(PATH).stats().followers
            assert (of_path.follower_id, of_path.namespaces) == ("f-1", (PATH,))
            assert len(client.namespace("b").stats().followers) == 2

            found = json.loads(run_verb("stats", "--server", address, "--json").stdout)
            assert [each["follower_id"] for each in found["followers"]] == ["f-1", "f-2"]
            lines = run_verb("stats", PATH, "--server", address).stdout
            assert "follower f-1\ta test, connected, lag 0 s" in lines
            assert "f-2" not in lines


def test_the_largest_report_is_read() -> None:
    """As many namespaces as a report may have, each with every field."""
    fields = {field.name: 1 for field in pb.NamespaceUse.DESCRIPTOR.fields}
    use = pb.NamespaceUse(**fields | {"namespace": "a/b", "output_ids": bytes(8), "learned": b"x"})
    request = pb.WatchRequest(
        report=pb.FollowerReport(used=[use] * MAX_USES, unacknowledged_tokens=1, held_bytes=1)
    )
    assert request_readers(Limits())["Watch"](request.SerializeToString()) == request

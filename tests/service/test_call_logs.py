"""Log lines of calls: they carry a request id and the method, and no tokens."""

from __future__ import annotations

import contextlib
import json
import re
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from suffixsvc import wire
from suffixsvc.access.tokens import TokenFile
from suffixsvc.errors import SuffixError
from suffixsvc.log_wire import WATCH_PROTOCOL
from suffixsvc.selection import Selection
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import suffix_cache_pb2_grpc, watch_pb2
from suffixsvc_client import ClientConfig, SuffixClient
from suffixsvc_follower import FollowerConfig, connect
from support.serving import ServeProcess, eventually, socket_dir

PATIENT = ClientConfig(step_timeout_s=300, open_timeout_s=300)
NEW = re.compile(r"req_[0-9a-f]{32}")
#: tokens whose digits, bytes and negatives occur nowhere else
MARKERS = [1_918_273_645 + 7 * k for k in range(40)]
NEGATIVE = -1_733_733_733


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        yield folder


class Calls:
    """Calls of a service with metadata."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.stub: Any = suffix_cache_pb2_grpc.SuffixCacheStub(self.channel)

    def refused(self, method: str, request: Any, request_id: str | None = None) -> grpc.RpcError:
        """The error of a call that must fail."""
        metadata = () if request_id is None else (("x-request-id", request_id),)
        call = partial(getattr(self.stub, method), request, metadata=metadata)
        with pytest.raises(grpc.RpcError) as caught:
            _whole(call(wait_for_ready=True, timeout=300))
        return caught.value


def _whole(reply: Any) -> None:
    """Read a stream to its end."""
    if hasattr(reply, "__next__"):
        deque(reply, 0)


@contextlib.contextmanager
def calling(serve: ServeProcess) -> Iterator[Calls]:
    calls = Calls(serve.address)
    try:
        yield calls
    finally:
        calls.channel.close()


def lines_of(serve: ServeProcess) -> list[dict[str, Any]]:
    assert serve.terminate() == 0
    return [json.loads(line) for line in serve.output().splitlines()]


def trailing_id(error: Any) -> str:
    [found] = [value for key, value in error.trailing_metadata() if key == "x-request-id"]
    return str(found)


def test_the_lines_of_a_call_have_its_id_and_its_method(folder: Path) -> None:
    none = pb.GetStatsRequest(namespace="none")
    with ServeProcess(folder, "--log-format", "json").start() as serve, calling(serve) as calls:
        kept = [calls.refused("GetStats", none, each) for each in ("trace/7f:1", "~" * 128)]
        made = [calls.refused("GetStats", none, each) for each in (None, "", "a" * 129, "two words")]
        assert [trailing_id(each) for each in kept] == ["trace/7f:1", "~" * 128]
        ids = [trailing_id(each) for each in made]
        assert all(NEW.fullmatch(each) for each in ids)
        assert len(set(ids)) == len(ids)
        calls.refused("Watch", iter([watch_pb2.WatchRequest()]), "watching")
        calls.refused("AddOutputs", iter([pb.AddOutputsRequest(namespace="a")] * 2), "adding")
        lines = lines_of(serve)
    refused = [line for line in lines if line["event"] == "call refused"]
    expected = [*map(trailing_id, kept), *ids, "watching", "adding"]
    assert [line["request_id"] for line in refused] == expected
    methods = [line["method"].rpartition("/")[2] for line in refused]
    assert methods == ["GetStats"] * 6 + ["Watch", "AddOutputs"]
    assert all(
        "request_id" not in line for line in lines if line["event"] in ("ready", "draining", "stopped")
    )


def test_deletions_are_logged_with_who_and_what_and_no_text(folder: Path) -> None:
    secret = np.array([771_001, 771_002], np.int32)
    token = TokenFile(folder / "tokens.toml").create("sql")
    sent = (("authorization", f"Bearer {token}"),)
    path = "sql/a"

    def delete(request_id: str, *, superseded: bool = False, **criteria: Any) -> Any:
        request = pb.DeleteRequest(
            selection=wire.selection_to_proto(Selection(**criteria)), superseded=superseded
        )
        return calls.stub.Delete(request, metadata=(*sent, ("x-request-id", request_id)), timeout=300)

    options = ("--log-format", "json", "--tokens", str(folder / "tokens.toml"))
    with ServeProcess(folder, *options).start() as serve, calling(serve) as calls:
        outputs = [
            pb.OutputItem(token_ids=secret.tobytes(), labels={"agent": "planner-xyz", "n": str(number)})
            for number in range(3)
        ]
        add = pb.AddOutputsRequest(namespace=path, outputs=outputs)
        added = calls.stub.AddOutputs(iter([add]), metadata=sent, wait_for_ready=True, timeout=300)
        delete("first", namespace=path, session_id="s0", principal="sql")
        delete("second", namespace=path, labels={"agent": "planner-xyz"}, older_than_seconds=0.0)
        delete("third", namespace=path, output_ids=[added.output_ids[0], 2**40])
        delete("fourth", namespace=path, output_ids=[2**40], superseded=True)
        gone = pb.DeleteNamespaceRequest(namespace=path, force=True)
        calls.stub.DeleteNamespace(gone, metadata=(*sent, ("x-request-id", "fifth")), timeout=300)
        lines = lines_of(serve)
    found = [line for line in lines if line["event"] in ("outputs deleted", "namespace deleted")]
    assert [line["request_id"] for line in found] == ["first", "second", "third", "fifth"]
    assert {(line["principal"], line["level"]) for line in found} == {("sql", "info")}
    assert [line["outputs"] for line in found] == [0, 3, 0, 0]
    assert [line.get("selection") for line in found[:3]] == [
        {"namespace": path, "session_id": "s0", "principal": "sql"},
        {"namespace": path, "labels": ["agent"], "older_than_seconds": 0.0},
        {"namespace": path, "output_ids": 2},
    ]
    assert (found[3]["namespace"], found[3]["force"]) == (path, True)
    assert not any(text in json.dumps(lines) for text in ("planner-xyz", "771001", token))


def test_lines_name_the_principal_once_it_is_known_and_no_credential(folder: Path) -> None:
    token = TokenFile(folder / "tokens.toml").create("sql")
    options = ("--log-format", "json", "--verbose", "--tokens", str(folder / "tokens.toml"))
    none = pb.GetStatsRequest(namespace="sql/none")
    with ServeProcess(folder, *options).start() as serve, calling(serve) as calls:
        for metadata in (
            (),
            (("authorization", f"Bearer {token}"),),
            (("authorization", f"Bearer {token}x"),),
        ):
            with pytest.raises(grpc.RpcError):
                calls.stub.GetStats(none, metadata=metadata, wait_for_ready=True, timeout=300)
        stream = calls.stub.Stream(
            iter([pb.StreamRequest(id=1)]), metadata=(("authorization", f"Bearer {token}"),)
        )
        assert [reply.id for reply in stream] == [1]
        calls.refused("GetStats", none)
        lines = lines_of(serve)
    ended = [line.get("principal") for line in lines if line["event"] == "call ended"]
    refused = [(line["code"], line.get("principal")) for line in lines if line["event"] == "call refused"]
    assert ended == [None, "sql", None, "sql", None]
    assert refused == [
        ("UNKNOWN_NAMESPACE", None),  # the operator, at its own socket
        ("UNKNOWN_NAMESPACE", "sql"),
        ("UNAUTHENTICATED", None),
        ("UNKNOWN_NAMESPACE", None),
    ]
    assert token not in str(lines)
    assert token.split("_", 2)[2] not in str(lines)


def test_every_call_has_a_line_at_debug_level(folder: Path) -> None:
    with ServeProcess(folder, "--log-format", "json", "--verbose").start() as serve, calling(serve) as calls:
        info = pb.GetServerInfoRequest()
        for each in ("first", "second"):
            calls.stub.GetServerInfo(
                info, metadata=(("x-request-id", each),), wait_for_ready=True, timeout=300
            )
        stream = calls.stub.Stream(iter([pb.StreamRequest(id=1)]), metadata=(("x-request-id", "third"),))
        assert [reply.id for reply in stream] == [1]
        lines = lines_of(serve)
    ended = [line for line in lines if line["event"] == "call ended"]
    assert sorted(line["request_id"] for line in ended) == ["first", "second", "third"]
    assert all(line["seconds"] >= 0 for line in ended)


def test_followers_lines_have_the_id_of_their_call(folder: Path) -> None:
    with ServeProcess(folder, "--log-format", "json").start() as serve:
        with connect(serve.address, mode="follow", config=FollowerConfig(client=PATIENT)) as backend:
            backend.namespace("a").open_session([1, 2, 3]).close(commit=False)
            with SuffixClient(serve.address, PATIENT) as client:
                eventually(lambda: client.stats().followers, "it follows")
        lines = lines_of(serve)
    connected, gone = (
        next(line for line in lines if line["event"] == f"follower {event}")
        for event in ("connected", "disconnected")
    )
    assert NEW.fullmatch(connected["request_id"])
    assert connected["request_id"] == gone["request_id"]
    assert gone["method"] == "/suffixsvc.v1.SuffixCache/Watch"


def test_no_line_has_tokens(folder: Path) -> None:
    """Every RPC with marker tokens, as they should be called and not, at debug level."""
    for style in ("json", "console"):
        place = folder / style
        place.mkdir()
        with ServeProcess(
            place, "--log-format", style, "--verbose", "--max-session-tokens", "300"
        ).start() as serve:
            with SuffixClient(serve.address, PATIENT) as client:
                as_they_should_be(client)
            with calling(serve) as calls:
                as_they_should_not_be(calls)
            with connect(serve.address, mode="follow", config=FollowerConfig(client=PATIENT)) as backend:
                session = backend.namespace("acme/sql").open_session(MARKERS[:5])
                session.step(MARKERS[5:9])
                session.close()
            assert serve.terminate() == 0
            said = serve.output()
        assert said.count("call refused") >= 15, said
        for marker in (*MARKERS, NEGATIVE):
            for written in written_forms(marker):
                assert written not in said, [line for line in said.splitlines() if written in line]


def written_forms(token: int) -> tuple[str, ...]:
    packed = token.to_bytes(4, "little", signed=True)
    return str(token), f"{token:,}", f"{token:x}", packed.hex(), repr(packed)[2:-1]


def as_they_should_be(client: SuffixClient) -> None:
    namespace = client.namespace("acme/sql")
    output_id = namespace.add_output(MARKERS)
    session = namespace.open_session(MARKERS[:8], labels={"agent": "a"})
    session.append_context(MARKERS[8:10])
    assert len(session.step(MARKERS[10:11]))
    session.close()
    private = namespace.open_session(MARKERS[:8], private=True)
    private.step(MARKERS[8:9])
    private.close()
    client.stats()
    client.namespaces()
    client.server_info()
    namespace.delete(output_ids=[output_id])


def as_they_should_not_be(calls: Calls) -> None:
    good = np.array(MARKERS, "<i4").tobytes()
    bad = (NEGATIVE).to_bytes(4, "little", signed=True) + good
    opened = calls.stub.OpenSession(
        pb.OpenSessionRequest(namespace="acme/sql", prompt_token_ids=good, session_id="s"),
        wait_for_ready=True,
        timeout=300,
    )
    refused: list[tuple[str, Any]] = [
        ("OpenSession", pb.OpenSessionRequest(namespace="acme/sql", prompt_token_ids=bad)),
        ("OpenSession", pb.OpenSessionRequest(namespace="acme/sql", prompt_token_ids=good[:-1])),
        ("OpenSession", pb.OpenSessionRequest(namespace="acme/sql", prompt_token_ids=good * 10)),
        (
            "OpenSession",
            pb.OpenSessionRequest(namespace="acme/sql", prompt_token_ids=good[:8], session_id="s"),
        ),
        ("OpenSession", pb.OpenSessionRequest(namespace="acme/sql", output_token_ids=bad)),
        ("Step", pb.StepRequest(session_id="s", new_token_ids=bad)),
        ("Step", pb.StepRequest(session_id="s", new_token_ids=good[4:], at=0)),  # a conflict
        ("Step", pb.StepRequest(session_id="s", new_token_ids=good, at=1000)),
        ("Step", pb.StepRequest(session_id="s", new_token_ids=good * 9)),
        ("Step", pb.StepRequest(session_id="t", new_token_ids=good)),
        ("AppendContext", pb.AppendContextRequest(session_id="s", token_ids=bad)),
        ("AppendContext", pb.AppendContextRequest(session_id="s", token_ids=good[4:], at=0)),
        ("AppendContext", pb.AppendContextRequest(session_id="t", token_ids=good)),
        ("CloseSession", pb.CloseSessionRequest(session_id="t")),
        ("AddOutputs", iter([added(token_ids=bad)])),
        ("AddOutputs", iter([added(token_ids=good, prompt_token_ids=bad)])),
        ("AddOutputs", iter([added(token_ids=good, segment_lens=[MARKERS[0]])])),
        ("AddOutputs", iter([added(token_ids=good, uuid=good[:12])])),
        ("ExportNgrams", pb.ExportNgramsRequest(namespace="none")),
        ("Delete", pb.DeleteRequest()),
        ("Backup", pb.BackupRequest(folder=b"relative")),
        ("DeleteNamespace", pb.DeleteNamespaceRequest(namespace="acme/sql")),
        ("GetStats", pb.GetStatsRequest(namespace="none")),
        ("FetchSegment", watch_pb2.FetchSegmentRequest(namespace="acme/sql", name="none")),
        ("Watch", iter([watch_pb2.WatchRequest(hello=watch_pb2.WatchHello(protocol=WATCH_PROTOCOL + 1))])),
    ]
    for method, request in refused:
        calls.refused(method, request)
    messages = [
        pb.StreamRequest(id=1, steps=pb.StepBatch(items=[pb.StepRequest(session_id="s", new_token_ids=bad)])),
        pb.StreamRequest(id=2, open=pb.OpenSessionRequest(namespace="acme/sql", prompt_token_ids=bad)),
        pb.StreamRequest(id=3, append_context=pb.AppendContextRequest(session_id="s", token_ids=bad)),
    ]
    assert [reply.id for reply in calls.stub.Stream(iter(messages), timeout=300)] == [1, 2, 3]
    assert opened.length == len(MARKERS)


def added(**item: Any) -> pb.AddOutputsRequest:
    return pb.AddOutputsRequest(namespace="acme/sql", outputs=[pb.OutputItem(**item)])


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_defect_has_a_traceback_without_the_values_of_variables(
    style: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import structlog

    from suffixsvc.service.logs import configure_logs
    from suffixsvc.service.messages.errors import as_suffix_error

    def broken(tokens: list[int]) -> Callable[[], int]:
        raise ZeroDivisionError("a defect")

    before = structlog.get_config()
    try:
        configure_logs(style)
        with pytest.raises(ZeroDivisionError) as caught:
            broken(MARKERS)
        assert isinstance(as_suffix_error(caught.value, "here"), SuffixError)
    finally:
        structlog.configure(**before)
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "ZeroDivisionError" in said
    assert not any(str(marker) in said for marker in MARKERS)

"""Rights at a real service: every method, by every right; revocation; sessions of two principals."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from suffixsvc import Limits, NewOutput, SuffixCache
from suffixsvc.access.principals import Right
from suffixsvc.errors import (
    InvalidConfigError,
    PermissionDeniedError,
    SuffixError,
    UnauthenticatedError,
    UnknownNamespaceError,
    UnknownSessionError,
)
from suffixsvc.lookup_records import RecordFile
from suffixsvc.selection import Selection
from suffixsvc.transport.identity import ClientIdentity
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import suffix_cache_pb2_grpc, watch_pb2
from suffixsvc.values import as_token_array
from suffixsvc_client import ClientConfig, SuffixClient
from suffixsvc_client.transport.interface import error_from_rpc
from support.access import ControlledService
from support.serving import eventually

SECRET = list(range(100, 140))
PATH = "acme/sql"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ControlledService]:
    with SuffixCache(tmp_path / "data") as cache:
        cache.namespace(PATH).add_output(SECRET, [1, 2, 3])
        with ControlledService(tmp_path, ("alice", "bob")).run(cache) as service:
            yield service


def grant(principal: str, right: Right, path: str = PATH) -> str:
    return f'[principals."{principal}"]\n{right.value} = ["{path}"]\n'


def _output(path: str) -> NewOutput:
    tokens = as_token_array([7, 8, 9])
    return NewOutput(namespace=path, token_ids=tokens, segment_lens=(3,), prompt_tail=tokens[:0])


def _follow(client: SuffixClient, path: str) -> None:
    """The raw Watch: the reply to a request to follow."""
    transport: Any = client.runner.transport
    with transport._channels.use() as held:
        stub = suffix_cache_pb2_grpc.SuffixCacheStub(held.channel)
        requests = [
            watch_pb2.WatchRequest(hello=watch_pb2.WatchHello(protocol=1, follower_id="f")),
            watch_pb2.WatchRequest(follow=watch_pb2.FollowNamespace(namespace=path)),
        ]
        call: Any = stub.Watch(_held_open(requests), metadata=transport.identity.credential().metadata)
        try:
            for reply in call:
                kind = reply.WhichOneof("reply")
                if kind == "refused":
                    raise error_from_detail(reply.refused.error)
                if kind == "outputs":
                    assert [list(as_array(each.token_ids)) for each in reply.outputs.outputs] == [SECRET]
                    return
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None
        finally:
            call.cancel()


def _held_open(requests: list[Any]) -> Iterator[Any]:
    yield from requests
    time.sleep(60)


def error_from_detail(detail: Any) -> SuffixError:
    from suffixsvc import wire

    return wire.error_from_detail(detail)


def as_array(data: bytes) -> Any:
    from suffixsvc import wire

    return wire.unpack_tokens(data)


def _fetch(client: SuffixClient, path: str) -> None:
    transport: Any = client.runner.transport
    with transport._channels.use() as held:
        stub = suffix_cache_pb2_grpc.SuffixCacheStub(held.channel)
        request = watch_pb2.FetchSegmentRequest(namespace=path, name="none.seg")
        try:
            list(stub.FetchSegment(request, metadata=transport.identity.credential().metadata))
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None


def _export(client: SuffixClient, path: str) -> None:
    wanted = [RecordFile(order=2, slots=4)]
    client.namespace(path).export_ngrams(wanted, [io.BytesIO()])


def _write(client: SuffixClient, path: str) -> None:
    with client.namespace(path).open_session([1, 2, 3]) as session:
        session.step([5])


def _read(client: SuffixClient, path: str) -> None:
    session = client.namespace(path).open_session([1, 2, 3], private=True)
    try:
        draft = session.step(SECRET[:3])
        assert draft.token_ids.tolist() == SECRET[3 : 3 + len(draft.token_ids)]
        assert len(draft.token_ids) > 0
    finally:
        session.close(commit=False)


def _read_in_passing(client: SuffixClient, path: str) -> None:
    own = client.namespace("alice/own").open_session([1, 2, 3], reads=[path])
    draft = own.step(SECRET[:3])
    assert draft.token_ids.tolist() == SECRET[3 : 3 + len(draft.token_ids)]
    own.close(commit=False)


#: what a principal does with a namespace -> the right that it takes beside those of the name, if any
METHODS: dict[str, tuple[Callable[[SuffixClient, str], Any], set[Right]]] = {
    "OpenSession private": (_read, {Right.READ}),
    "OpenSession reads": (_read_in_passing, {Right.READ}),
    "OpenSession": (_write, {Right.READ, Right.WRITE}),
    "AddOutputs": (lambda client, path: client.namespace(path).add_outputs([_output(path)]), {Right.WRITE}),
    "AddOutputs of a corpus": (
        lambda client, path: client.namespace(path).add_outputs([replace(_output(path), corpus=True)]),
        {Right.ADMIN},
    ),
    "GetStats": (lambda client, path: client.namespace(path).stats(), {Right.READ}),
    "Watch": (_follow, {Right.FOLLOW}),
    "FetchSegment": (_fetch, {Right.FOLLOW}),
    "ExportNgrams": (_export, {Right.FOLLOW}),
    "Delete": (lambda client, path: client.delete(Selection(path, [10**6])), {Right.ADMIN}),
    "DeleteNamespace": (lambda client, path: client.delete_namespace(path, force=True), {Right.ADMIN}),
}
#: errors that say that a call got past its check
ALLOWED = ("UnknownOutputError", "UnknownSegmentError")


def _is_allowed(call: Callable[[SuffixClient, str], Any], client: SuffixClient) -> bool:
    try:
        call(client, PATH)
    except PermissionDeniedError:
        return False
    except SuffixError as error:
        if type(error).__name__ not in ALLOWED:
            raise
    return True


@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_its_right_and_no_other(service: ControlledService, name: str) -> None:
    call, needed = METHODS[name]
    with service.client("alice") as client:
        for granted in (set(), *({right} for right in Right), {Right.READ, Right.WRITE}):
            lines = "".join(f'{right.value} = ["{PATH}"]\n' for right in granted)
            service.set_policy(f'[principals."alice"]\n{lines}# {name} {sorted(r.value for r in granted)}\n')
            rights = {each for right in granted for each in right.includes}
            assert _is_allowed(call, client) is (needed <= rights), granted


def test_a_namespace_that_does_not_exist_is_denied_like_one_that_does(service: ControlledService) -> None:
    with service.client("alice") as client:
        errors = []
        for path in (PATH, "acme/nothing"):
            with pytest.raises(PermissionDeniedError) as raised:
                client.namespace(path).stats()
            errors.append(str(raised.value).replace(path, "PATH"))
        assert errors[0] == errors[1]
        with pytest.raises(UnknownNamespaceError):
            client.namespace("alice/nothing").stats()


def test_lists_and_statistics_show_what_the_caller_may_know(service: ControlledService) -> None:
    with service.client("alice") as alice, service.client("bob") as bob:
        alice.namespace("alice/a").add_output([1, 2, 3])
        assert [record.path for record in alice.namespaces()] == ["alice/a"]
        assert bob.namespaces() == []
        before = alice.namespace("alice/a").stats()
        assert before.last_lsn == 0
        bob.namespace("bob/b").add_output([4, 5, 6])
        assert alice.namespace("alice/a").stats() == before
        with pytest.raises(PermissionDeniedError, match="statistics of the whole service"):
            alice.stats()
        service.set_policy('[principals."alice"]\nadmin = ["*"]')
        assert alice.stats().last_lsn > 0
        assert [record.path for record in alice.namespaces()] == [PATH, "alice/a", "bob/b"]


@pytest.mark.parametrize("token", [None, "sfx_aaaaaaaaaa_x", "x", "", "y" * 5000])
def test_callers_without_a_valid_token_get_nothing_but_health(
    service: ControlledService, token: str | None
) -> None:
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(service.address) as channel:
        stub = suffix_cache_pb2_grpc.SuffixCacheStub(channel)
        calls: list[Callable[[], Any]] = [
            lambda: stub.GetServerInfo(pb.GetServerInfoRequest(), metadata=metadata),
            lambda: stub.ListNamespaces(pb.ListNamespacesRequest(), metadata=metadata),
            lambda: stub.GetStats(pb.GetStatsRequest(), metadata=metadata),
            lambda: stub.OpenSession(pb.OpenSessionRequest(namespace=PATH), metadata=metadata),
            lambda: stub.Step(pb.StepRequest(session_id="s"), metadata=metadata),
            lambda: stub.AppendContext(pb.AppendContextRequest(session_id="s"), metadata=metadata),
            lambda: stub.CloseSession(pb.CloseSessionRequest(session_id="s"), metadata=metadata),
            lambda: stub.AddOutputs(iter([pb.AddOutputsRequest(namespace=PATH)]), metadata=metadata),
            lambda: list(stub.ExportNgrams(pb.ExportNgramsRequest(namespace=PATH), metadata=metadata)),
            lambda: stub.Delete(pb.DeleteRequest(), metadata=metadata),
            lambda: stub.DeleteNamespace(pb.DeleteNamespaceRequest(namespace=PATH), metadata=metadata),
            lambda: list(stub.Stream(iter([pb.StreamRequest(id=1)]), metadata=metadata)),
            lambda: list(stub.Watch(iter([watch_pb2.WatchRequest()]), metadata=metadata)),
            lambda: list(stub.Backup(pb.BackupRequest(folder=b"/nowhere/backup"), metadata=metadata)),
            lambda: list(stub.FetchSegment(watch_pb2.FetchSegmentRequest(namespace=PATH), metadata=metadata)),
        ]
        for call in calls:
            with pytest.raises(grpc.RpcError) as raised:
                call()
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert isinstance(error_from_rpc(raised.value), UnauthenticatedError)
        assert len(calls) == len(pb.DESCRIPTOR.services_by_name["SuffixCache"].methods)
        health = health_pb2_grpc.HealthStub(channel)
        assert health.Check(health_pb2.HealthCheckRequest()).status == 1


def test_a_loopback_address_is_open_until_a_token_exists(tmp_path: Path) -> None:
    service = ControlledService(tmp_path, (), "[default]\n")
    with SuffixCache() as cache, service.run(cache), service.client("") as client:
        client.namespace("a").add_output([1, 2])
        service.tokens["alice"] = service.token_file.create("alice")
        service.access.refresh()
        with pytest.raises(UnauthenticatedError):
            client.namespaces()
        with service.client("alice") as alice:
            assert alice.namespaces() == []
        service.token_file.path.unlink()
        service.access.refresh()
        with pytest.raises(UnauthenticatedError):  # a removed file opens nothing
            client.namespaces()


def test_a_new_token_is_accepted_at_once_and_a_revoked_one_is_not(service: ControlledService) -> None:
    service.tokens["alice"], old = service.token_file.create("alice"), service.tokens["alice"]
    with service.client("alice") as new, SuffixClient(service.address, _with(old)) as client:
        assert new.namespaces() == client.namespaces() == []
        service.token_file.revoke([old])
        eventually(lambda: _refused(client), "it takes effect")
        assert new.namespaces() == []


def _with(token: str) -> ClientConfig:
    return ClientConfig(identity=ClientIdentity(token=token))


def _refused(client: SuffixClient) -> bool:
    try:
        client.namespaces()
    except UnauthenticatedError:
        return True
    return False


def test_deletions_take_what_the_caller_may_delete(service: ControlledService) -> None:
    with service.client("alice") as alice, service.client("bob") as bob:
        for client, path in ((alice, "alice/a"), (bob, "bob/b")):
            with client.namespace(path).open_session([1], session_id="same") as session:
                session.step([5, 6, 7])
        for selection in (Selection(session_id="same"), Selection(principal="alice"), Selection("bob/b")):
            with pytest.raises(PermissionDeniedError):
                alice.delete(selection)
        with pytest.raises(PermissionDeniedError, match="an erasure that is waited for"):
            alice.delete(Selection("alice/a"), from_disk=True)
        assert alice.delete(Selection("alice/a", principal="bob")).outputs == 0
        assert alice.delete(Selection("alice/a", session_id="same")).outputs == 1
        assert bob.namespace("bob/b").stats().outputs == 1
        service.set_policy('[principals."alice"]\nadmin = ["*"]')
        deleted = alice.delete(Selection(principal="bob", session_id="same"), from_disk=True)
        assert (deleted.outputs, deleted.namespaces) == (1, ("bob/b",))


def test_a_backup_takes_admin_on_every_namespace(service: ControlledService, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    with service.client("alice") as alice:
        for policy in (
            "[principals]",
            grant("alice", Right.ADMIN),
            '[principals."alice"]\nread = ["*"]\nwrite = ["*"]\nfollow = ["*"]\n',
        ):
            service.set_policy(policy)
            for path in (folder, "not/absolute"):  # rights are checked first
                with pytest.raises(PermissionDeniedError, match="a backup of the service"):
                    alice.backup(path)
            assert not folder.exists()
        service.set_policy('[principals."alice"]\nadmin = ["*"]\n')
        alice.namespace("alice/own").add_output([4, 5, 6])
        assert alice.backup(folder).outputs == 2
        wanted = list(service.cache._parts.store.scan())
    with SuffixCache(folder) as copied:
        found = list(copied._parts.store.scan())
    assert [each.output.principal for each in found] == [each.output.principal for each in wanted]
    assert {each.output.principal for each in found} == {"", "alice"}


def test_streams_of_a_revoked_token_end(service: ControlledService) -> None:
    with service.client("alice", step_timeout_s=1.0) as alice, service.client("bob") as bob:
        of_alice = alice.namespace("alice/a").open_session(SECRET)
        of_bob = bob.namespace("bob/b").open_session(SECRET)
        assert len(of_alice.step(SECRET[:4]).token_ids)
        service.revoke("alice")
        eventually(lambda: not len(of_alice.step(SECRET[4:5]).token_ids), "it takes effect")
        assert len(of_bob.step(SECRET[:4]).token_ids)
        with pytest.raises(UnauthenticatedError):
            of_alice.close()
        of_bob.close(commit=False)


def test_an_expired_token_ends_its_streams(service: ControlledService) -> None:
    from datetime import timedelta

    token = service.token_file.create("alice", timedelta(seconds=2))
    with SuffixClient(service.address, _with(token)) as client:
        session = client.namespace("alice/a").open_session(SECRET)
        eventually(lambda: not len(session.step([1]).token_ids) and _refused(client), "it takes effect")


def test_sessions_of_two_principals_with_one_id_are_unrelated(service: ControlledService) -> None:
    with service.client("alice") as alice, service.client("bob") as bob:
        mine = alice.namespace("alice/a").open_session([1, 2], session_id="same")
        his = bob.namespace("bob/b").open_session([3, 4], session_id="same")
        mine.step([10, 11])
        his.step([20, 21])
        first, second = mine.close(), his.close()
        assert first is not None
        assert second is not None
        assert first != second
        rows = {
            row.output.session_id: row.output.token_ids.tolist() for row in service.cache._parts.store.scan()
        }
        assert sorted(rows.values()) == sorted([SECRET, [10, 11], [20, 21]])
        stored = [name for name in rows if name]
        assert len(stored) == 2
        assert not any("alice" in name or "bob" in name or "same" in name for name in stored)


def test_a_session_of_another_principal_cannot_be_used(service: ControlledService) -> None:
    with service.client("alice") as alice, grpc.insecure_channel(service.address) as channel:
        mine = alice.namespace("alice/a").open_session([1, 2], session_id="mine")
        mine.step([10, 11])
        stub = suffix_cache_pb2_grpc.SuffixCacheStub(channel)
        metadata = (("authorization", f"Bearer {service.tokens['bob']}"),)
        for session_id in ("mine", "alice\x1fmine"):
            for call in (
                lambda: stub.Step(pb.StepRequest(session_id=session_id), metadata=metadata),  # noqa: B023 - called here
                lambda: stub.CloseSession(
                    pb.CloseSessionRequest(session_id=session_id, discard=True),  # noqa: B023 - called here
                    metadata=metadata,
                ),
            ):
                with pytest.raises(grpc.RpcError) as raised:
                    call()
                assert raised.value.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)
            step = pb.StepBatch(items=[pb.StepRequest(session_id=session_id, max_draft_tokens=4)])
            [reply] = stub.Stream(iter([pb.StreamRequest(id=1, steps=step)]), metadata=metadata)
            assert reply.steps.items[0].HasField("error")
        assert mine.close() is not None


def test_a_changed_policy_ends_sessions_that_lost_their_rights(service: ControlledService) -> None:
    service.set_policy(f'[principals."alice"]\nread = ["{PATH}"]\nwrite = ["{PATH}"]\n')
    with service.client("alice") as alice:
        session = alice.namespace(PATH).open_session([1, 2, 3])
        other = alice.namespace("alice/a").open_session([1, 2, 3])
        assert session.step(SECRET[:3]).token_ids.tolist()[:2] == SECRET[3:5]
        service.set_policy(f'[principals."alice"]\nread = ["{PATH}"]\n')
        assert not len(session.step(SECRET[3:4]).token_ids)
        with pytest.raises(PermissionDeniedError):
            session.close()
        assert [row.output.token_ids.tolist() for row in service.cache._parts.store.scan(PATH)] == [SECRET]
        other.step([4])
        assert other.close() is not None


def test_an_invalid_policy_changes_nothing(service: ControlledService) -> None:
    service.set_policy(grant("alice", Right.READ))
    with service.client("alice") as alice:
        alice.namespace(PATH).stats()
        with pytest.raises(InvalidConfigError):
            service.set_policy("[principals.alice]\nread = 5")
        alice.namespace(PATH).stats()
        service.set_policy("[principals]")
        with pytest.raises(PermissionDeniedError):
            alice.namespace(PATH).stats()


def test_limits_of_a_changed_policy_apply_to_existing_namespaces(service: ControlledService) -> None:
    with service.client("alice") as alice:
        namespace = alice.namespace("alice/a")
        for n in range(8):
            namespace.add_output([n] * 200)
        service.set_policy('[namespaces."alice"]\nmax_bytes = "40 KiB"\n[principals]\n')
        service.cache.evict()
        stats = namespace.stats()
        assert (stats.limit_bytes, stats.outputs < 8, stats.held_bytes <= 40 << 10) == (40 << 10, True, True)
        service.set_policy('[namespaces."alice"]\npinned = true\n[principals]\n')
        assert service.cache.evict() == 0


def test_hostile_headers(service: ControlledService) -> None:
    with grpc.insecure_channel(service.address) as channel:
        stub = suffix_cache_pb2_grpc.SuffixCacheStub(channel)
        good = f"Bearer {service.tokens['alice']}"
        for metadata in (
            (("authorization", "Basic x"),),
            (("authorization", "Bearer"),),
            (("authorization", "Bearer   "),),
            (("authorization", good), ("authorization", good)),
            (("authorization", good + " x"),),
        ):
            with pytest.raises(grpc.RpcError) as raised:
                stub.ListNamespaces(pb.ListNamespacesRequest(), metadata=metadata)
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert service.tokens["alice"] not in str(raised.value)
        stub.ListNamespaces(pb.ListNamespacesRequest(), metadata=(("authorization", good),))


def test_unknown_sessions_look_the_same_to_everybody(service: ControlledService) -> None:
    metadata = (("authorization", f"Bearer {service.tokens['bob']}"),)
    with grpc.insecure_channel(service.address) as channel:
        stub = suffix_cache_pb2_grpc.SuffixCacheStub(channel)
        with pytest.raises(grpc.RpcError) as raised:
            stub.Step(pb.StepRequest(session_id="x"), metadata=metadata)
        assert isinstance(error_from_rpc(raised.value), UnknownSessionError)


def test_the_operator_of_the_own_socket_may_do_everything(tmp_path: Path) -> None:
    from support.serving import serving, socket_dir

    service = ControlledService(tmp_path, ("alice",))
    with SuffixCache(limits=Limits()) as cache, socket_dir() as folder:
        cache.namespace(PATH).add_output(SECRET)
        with (
            serving(cache, f"unix:{folder}/s", access=service.access) as (_, address),
            SuffixClient(address, ClientConfig(identity=ClientIdentity())) as operator,
        ):
            assert operator.stats().outputs == 1
            with (
                SuffixClient(address, _with(service.tokens["alice"])) as alice,
                pytest.raises(PermissionDeniedError),  # a token is not outdone by the socket
            ):
                alice.namespace(PATH).stats()

"""Processes of several users at the unix socket of one service: real processes, tickets, policies."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from suffixsvc import SuffixCache
from suffixsvc.access.control import AccessControl
from suffixsvc.errors import ListenError, UnauthenticatedError
from suffixsvc.transport.user_tickets import identity_path
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import suffix_cache_pb2_grpc
from suffixsvc_client import ClientConfig, SuffixClient
from support.other_uid_process import other_uid_process_at
from support.serving import ServeProcess, eventually, serving, socket_dir
from support.user_process import UserProcess

#: users without an entry in /etc/passwd
ALICE, BOB, MALLORY = 54001, 54002, 54003
POLICY = f"""
[principals."alice"]
uids = [{ALICE}]
follow = ["shared"]
[principals."bob"]
uids = [{BOB}]
"""
PATIENT = ClientConfig(step_timeout_s=60.0, open_timeout_s=60.0, call_timeout_s=60.0)

#: begins the code of a process of another user
CLIENT = """
from suffixsvc.errors import SuffixError
from suffixsvc_client import ClientConfig, SuffixClient
CONFIG = ClientConfig(step_timeout_s=60.0, open_timeout_s=60.0, call_timeout_s=60.0)
client = SuffixClient(address, CONFIG)

def attempt(call):
    try:
        return str(call())
    except SuffixError as error:
        return f"{type(error).__name__}: {error}"

def store(path):
    return client.namespace(path).add_output([1, 2, 3, 4])
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        folder.chmod(0o755)
        (folder / "policies.toml").write_text(POLICY)
        yield folder


def shared_service(folder: Path) -> ServeProcess:
    options = ("--socket-mode", "0666", "--policies", str(folder / "policies.toml"))
    return ServeProcess(folder, *options, "--log-format", "json")


def test_every_user_is_its_own_principal(folder: Path) -> None:
    code = CLIENT + (
        "tell([attempt(lambda: store(path)) for path in ('alice/x', 'bob/x')]"
        " + [attempt(lambda: client.namespaces())])"
    )
    with shared_service(folder) as service:
        service.start()
        for user, own in ((ALICE, 0), (BOB, 1)):
            with UserProcess(user, code, address=service.address) as process:
                *stored, listed = process.hear()
            assert "Error" not in stored[own], stored
            assert "PermissionDeniedError" in stored[1 - own]
            assert ("alice/x" in listed, "bob/x" in listed) == (own == 0, own == 1)
        with UserProcess(MALLORY, code, address=service.address) as process:
            for answer in process.hear():
                assert answer.startswith("UnauthenticatedError")
                assert str(MALLORY) in answer
        with SuffixClient(service.address, PATIENT) as root:
            assert {each.path for each in root.namespaces()} >= {"alice/x", "bob/x"}
            assert root.stats().store_bytes > 0, "root is the operator"
        assert service.terminate() == 0
        lines = [json.loads(line) for line in service.output().splitlines()]
    [refused] = [line for line in lines if "no principal has its user id" in line["event"]]
    assert (refused["uid"], refused["level"]) == (MALLORY, "warning")
    assert str(MALLORY) in refused["remedy"]


def test_a_call_without_ticket_or_token_is_nobodys(folder: Path) -> None:
    """Not the operator's, as it is at a socket that only the service's user can open."""
    with shared_service(folder) as service:
        service.start()
        assert os.stat(service.socket).st_mode & 0o777 == 0o666
        with grpc.insecure_channel(service.address) as channel:
            stub = suffix_cache_pb2_grpc.SuffixCacheStub(channel)
            for metadata in ((), (("authorization", "Bearer sfu_" + "A" * 59),)):
                with pytest.raises(grpc.RpcError) as caught:
                    stub.ListNamespaces(pb.ListNamespacesRequest(), metadata=metadata)
                error: grpc.Call = caught.value  # type: ignore[assignment] # it is one
                assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert service.terminate() == 0
        assert not service.socket.exists()
        assert not Path(identity_path(str(service.socket))).exists()


def test_the_services_own_user_is_the_operator_and_others_trust_it(folder: Path) -> None:
    """A service that is not root's, in a folder of its user."""
    serve = """
    from pathlib import Path
    from suffixsvc import SuffixCache
    from suffixsvc.access.control import AccessControl
    from suffixsvc.service.listeners.listen import parse_address
    from suffixsvc.service.server import SuffixServer
    with SuffixCache() as cache:
        access = AccessControl(policy=Path(policy), socket_mode=0o666)
        server = SuffixServer(cache, [parse_address(address)], access=access)
        server.start()
        tell("serving")
        wait()
        server.drain()
    """
    os.chown(folder, ALICE, ALICE)
    policy = folder / "policies.toml"
    policy.write_text(f'[principals."bob"]\nuids = [{BOB}]\n')
    address = f"unix:{folder}/s"
    code = CLIENT + "tell(attempt(lambda: client.stats().store_bytes))"
    with UserProcess(ALICE, serve, address=address, policy=str(policy)) as service:
        assert service.hear() == "serving"
        answers = []
        for user in (ALICE, BOB, MALLORY):
            with UserProcess(user, code, address=address) as process:
                answers.append(process.hear())
        assert answers[0].isdigit()
        assert answers[1].startswith("PermissionDeniedError")
        assert answers[2].startswith("UnauthenticatedError")


def test_a_client_of_another_user_survives_a_restart_of_the_service(folder: Path) -> None:
    """The tickets of the service before are not accepted any more."""
    code = (
        CLIENT
        + """
with client.namespace("alice").open_session([1, 2, 3]) as session:
    session.step([4])
    tell("stepped")
    wait()
    session.step([5])
    tell(attempt(lambda: store("alice")))
    session.step([6])
tell("closed")
"""
    )
    with shared_service(folder) as service:
        service.start()
        with UserProcess(ALICE, code, address=service.address) as process:
            assert process.hear() == "stepped"
            service.kill()
            service.start()
            process.say("go on")
            assert "Error" not in process.hear()
            assert process.hear() == "closed"
        with SuffixClient(service.address, PATIENT) as root:
            assert root.namespace("alice").stats().outputs == 2


def test_an_asyncio_client_proves_its_user(folder: Path) -> None:
    code = """
    import asyncio
    from suffixsvc_client import AsyncSuffixClient, ClientConfig
    async def run():
        config = ClientConfig(step_timeout_s=60.0, open_timeout_s=60.0, call_timeout_s=60.0)
        async with AsyncSuffixClient(address, config) as client:
            session = await client.namespace("alice").open_session([1, 2, 3])
            await session.step([4, 5])
            await session.close()
            tell([each.path for each in await client.namespaces()])
    asyncio.run(run())
    """
    with shared_service(folder) as service:
        service.start()
        with UserProcess(ALICE, code, address=service.address) as process:
            assert process.hear() == ["alice"]


def test_a_user_that_loses_its_principal_loses_its_calls(folder: Path) -> None:
    """Streams and followers in progress end, their copies with them, and tickets are refused."""
    code = (
        CLIENT
        + """
import time
from pathlib import Path
from suffixsvc_follower import connect, FollowerConfig
config = FollowerConfig(client=CONFIG, segment_cache=Path("/nonexistent"), connect_seconds=60.0)
follower = connect(address, ["shared"], "follow", config)
session = client.namespace("alice").open_session([1, 2, 3])
session.step([4])
tell("follows")
wait()
tell(attempt(lambda: client.namespaces()))
while follower.refusal is None:
    time.sleep(0.01)
tell(type(follower.refusal).__name__)
wait()
while "Error" in (answer := attempt(lambda: [each.path for each in client.namespaces()])):
    time.sleep(0.01)
tell(answer)
"""
    )
    with shared_service(folder) as service:
        service.start()
        with SuffixClient(service.address, PATIENT) as root:
            root.namespace("shared").add_output([7, 8, 9])
        with UserProcess(ALICE, code, address=service.address) as process:
            assert process.hear() == "follows"
            (folder / "policies.toml").write_text("[principals]\n")
            with SuffixClient(service.address, PATIENT) as root:
                eventually(lambda: not root.namespace("shared").stats().followers, "the follower has ended")
            process.say("go on")
            refused = process.hear()
            assert refused.startswith("UnauthenticatedError")
            assert process.hear() == "UnauthenticatedError"
            (folder / "policies.toml").write_text(POLICY)
            process.say("go on")
            assert "alice" in process.hear()


def test_a_child_with_another_user_is_not_its_parent(folder: Path) -> None:
    """A server that gives up its user after a fork does not keep the rights of its parent's ticket."""
    code = (
        CLIENT
        + f"""
import os
tell(attempt(lambda: [each.path for each in client.namespaces()]))
pid = os.fork()
if not pid:
    os.setuid({BOB})
    tell(attempt(lambda: [each.path for each in client.namespaces()]))
    os._exit(0)
os.waitpid(pid, 0)
"""
    )
    with shared_service(folder) as service:
        service.start()
        with SuffixClient(service.address, PATIENT) as root:
            for path in ("alice", "bob"):
                root.namespace(path).add_output([1, 2, 3])
        with UserProcess(0, code, address=service.address) as process:
            assert process.hear() == "['alice', 'bob']"
            assert process.hear() == "['bob']"


def test_the_command_line_proves_its_user(folder: Path) -> None:
    code = """
    from suffixsvc_cli import main
    tell(main(["namespaces", "list", "--server", address, "--json"]))
    """
    with shared_service(folder) as service:
        service.start()
        with SuffixClient(service.address, PATIENT) as root:
            for path in ("alice", "bob"):
                root.namespace(path).add_output([1, 2, 3])
        with UserProcess(BOB, code, address=service.address) as process:
            shown = str(process.hear())
            assert process.hear() == 0
        assert "bob" in shown
        assert "alice" not in shown


# ------------------------------------------------------------------------------------------- in one process


def test_tickets_are_renewed_before_they_expire_and_after(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suffixsvc.access.user_tickets.LIFETIME_SECONDS", 1)
    access = AccessControl(socket_mode=0o666)
    tickets = access._tickets
    assert tickets is not None
    issue, issued = tickets.issue, set[str]()

    def observed(uid: int) -> str:
        ticket = issue(uid)
        issued.add(ticket)
        return ticket

    monkeypatch.setattr(tickets, "issue", observed)
    with (
        SuffixCache() as cache,
        serving(cache, f"unix:{folder}/s", access=access) as (_, address),
        SuffixClient(address, PATIENT) as client,
    ):
        client.namespace("a").add_output([1, 2, 3])
        eventually(lambda: len(client.namespaces()) == 1 and len(issued) >= 4, "tickets are renewed")
        monkeypatch.setattr(tickets, "_key", os.urandom(32))  # what a client has is refused from now on
        assert len(client.namespaces()) == 1
        session = client.namespace("a").open_session([1, 2, 3])
        session.step([4])
        assert session.close() is not None


def test_a_token_takes_precedence_and_no_ticket_is_fetched(folder: Path) -> None:
    from suffixsvc.access.tokens import TokenFile
    from suffixsvc.transport.identity import ClientIdentity

    tokens = TokenFile(folder / "tokens.toml")
    token = tokens.create("carol")
    access = AccessControl(tokens, socket_mode=0o666)
    with SuffixCache() as cache, serving(cache, f"unix:{folder}/s", access=access) as (_, address):
        config = ClientConfig(identity=ClientIdentity(token=token), call_timeout_s=60.0)
        os.unlink(identity_path(f"{folder}/s"))
        with SuffixClient(address, config) as client:
            client.namespace("carol").add_output([1, 2, 3])
            with pytest.raises(Exception, match="granted"):
                client.namespace("alice").add_output([1, 2, 3])
        with SuffixClient(address, PATIENT) as anonymous, pytest.raises(UnauthenticatedError):
            anonymous.namespaces()


def test_at_a_socket_of_its_own_user_a_client_asks_for_no_ticket(folder: Path) -> None:
    """In a folder like /tmp, a process of another user at PATH.identity does not stop clients."""
    folder.chmod(0o1777)
    with SuffixCache() as cache, serving(cache, f"unix:{folder}/s") as (_, address):
        assert not os.path.exists(identity_path(f"{folder}/s"))
        with other_uid_process_at(folder / "s.identity") as log, SuffixClient(address, PATIENT) as client:
            client.namespace("a").add_output([1, 2, 3])
            assert log.read_bytes() == b""


def test_a_process_of_another_user_at_the_identity_socket(folder: Path) -> None:
    """The service does not start; a client asks it for nothing."""
    folder.chmod(0o1777)
    access = AccessControl(socket_mode=0o666)
    with (
        other_uid_process_at(folder / "s.identity"),
        SuffixCache() as cache,
        pytest.raises(ListenError, match="identity"),
        serving(cache, f"unix:{folder}/s", access=access),
    ):
        pass
    (folder / "s.identity").unlink()
    with SuffixCache() as cache, serving(cache, f"unix:{folder}/s", access=access) as (_, address):
        os.unlink(folder / "s.identity")  # as its folder's owner can
        with other_uid_process_at(folder / "s.identity") as log, SuffixClient(address, PATIENT) as client:
            with pytest.raises(Exception, match="trusted user"):
                client.namespaces()
            assert log.read_bytes() == b""


def test_stale_identity_sockets_of_a_killed_service_are_replaced(folder: Path) -> None:
    with shared_service(folder) as service:
        service.start()
        service.send(signal.SIGKILL)
        service.kill()
        assert Path(identity_path(str(service.socket))).exists()
        service.start()
        with SuffixClient(service.address, PATIENT) as root:
            assert root.namespaces() == []
        service.kill()
    with ServeProcess(folder) as unshared:  # and one without the option ignores it
        unshared.start()
        with SuffixClient(unshared.address, PATIENT) as root:
            assert root.namespaces() == []


def test_the_option_needs_a_unix_socket(folder: Path) -> None:
    serve = ServeProcess(folder, "--socket-mode", "0666", listen=("127.0.0.1:0",))
    process = serve.launch()
    _, output = process.communicate(timeout=300)
    assert process.returncode == 2
    assert "--socket-mode must be given with a unix socket" in output

"""Tickets of users and the socket that issues them, without a service."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixsvc.access.control import AccessControl, Peer
from suffixsvc.access.identity_socket import IdentitySocket, binding
from suffixsvc.access.policy_file import read_policy_file
from suffixsvc.access.user_tickets import LIFETIME_SECONDS, UserTickets
from suffixsvc.errors import (
    InvalidConfigError,
    ListenError,
    ProtocolError,
    ServiceUnavailableError,
    UnauthenticatedError,
    UnsupportedVersionError,
)
from suffixsvc.runtime.atomic_file import write_atomically
from suffixsvc.transport.peer_credentials import ExpectedPeer
from suffixsvc.transport.user_tickets import TicketMessage, fetch_ticket, identity_path
from support.other_uid_process import OTHER_UID, other_uid_process_at
from support.serving import socket_dir

PEER = ExpectedPeer("the service", "Start it.", "Move it.")
PATIENT = 60.0
UIDS = st.integers(0, 2**32 - 1)


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        yield folder


# --------------------------------------------------------------------------------------------------- tickets


@given(UIDS)
def test_a_ticket_is_of_its_user_until_it_expires(uid: int) -> None:
    now = 1000.0
    tickets = UserTickets(lambda: now)
    ticket = tickets.issue(uid)
    assert tickets.user_of(ticket) == uid
    now += LIFETIME_SECONDS - 0.001
    assert tickets.user_of(ticket) == uid
    now += 0.002
    assert tickets.user_of(ticket) is None


@given(UIDS, st.data())
def test_an_altered_ticket_is_none(uid: int, data: st.DataObject) -> None:
    tickets = UserTickets()
    ticket = tickets.issue(uid)
    at = data.draw(st.integers(0, len(ticket) - 2))  # the last character has bits that are not used
    other = data.draw(st.characters().filter(lambda each: each != ticket[at]))
    # base64's two alphabets stand for the same bytes
    if {other, ticket[at]} in ({"-", "+"}, {"_", "/"}):
        return
    assert tickets.user_of(ticket[:at] + other + ticket[at + 1 :]) is None


@given(st.text())
def test_another_text_is_no_ticket(text: str) -> None:
    tickets = UserTickets()
    assert tickets.user_of(text) is None
    assert tickets.user_of("sfu_" + text) is None


def test_a_ticket_of_another_server_is_none() -> None:
    """Also one from before a restart."""
    assert UserTickets().user_of(UserTickets().issue(7)) is None


# -------------------------------------------------------------------------------------------------- messages


def test_the_bytes_of_a_message_are_fixed() -> None:
    assert TicketMessage(1001, "sfu_x", 600).encode() == bytes.fromhex(
        "53465855 01 00 0500 e9030000 58020000 7366755f78"
    )
    assert TicketMessage(1001, None).encode() == bytes.fromhex("53465855 01 01 0000 e9030000 00000000")


@given(UIDS, st.none() | st.text(st.characters(codec="ascii"), min_size=1, max_size=400), UIDS)
def test_messages_are_read_as_they_were_written(uid: int, ticket: str | None, seconds: int) -> None:
    message = TicketMessage(uid, ticket, seconds)
    assert TicketMessage.decode(message.encode()) == message


def test_malformed_messages_are_typed_errors() -> None:
    whole = TicketMessage(1001, "sfu_ticket", 600).encode()
    for size in range(len(whole)):
        with pytest.raises(ProtocolError):
            TicketMessage.decode(whole[:size])
    for wrong in (whole + b"x", b"HTTP" + whole[4:], whole[:5] + b"\2" + whole[6:], whole[:-1] + b"\xff"):
        with pytest.raises(ProtocolError):
            TicketMessage.decode(wrong)
    with pytest.raises(UnsupportedVersionError, match="version"):
        TicketMessage.decode(whole[:4] + b"\2" + whole[5:])


def test_a_message_does_not_show_its_ticket() -> None:
    assert "sfu_secret" not in repr(TicketMessage(1, "sfu_secret"))


# --------------------------------------------------------------------------------------------------- sockets


@contextlib.contextmanager
def answering(folder: Path) -> Iterator[str]:
    path = str(folder / "s.identity")
    with IdentitySocket(path, 0o666, lambda uid: TicketMessage(uid, "sfu_of_this_user", 5)) as listener:
        listener.start()
        yield path


def test_a_connection_gets_the_ticket_of_its_user(folder: Path) -> None:
    with answering(folder) as path:
        assert os.stat(path).st_mode & 0o777 == 0o666
        assert fetch_ticket(path, PEER, PATIENT) == TicketMessage(os.geteuid(), "sfu_of_this_user", 5)
    assert not os.path.exists(path)
    assert fetch_ticket(path, PEER, PATIENT) is None


def test_peers_that_do_not_read_or_flood_do_not_keep_others_out(folder: Path) -> None:
    with answering(folder) as path, contextlib.ExitStack() as stack:
        for _ in range(300):  # more than the queue holds; they stay open and read nothing
            silent = stack.enter_context(socket.socket(socket.AF_UNIX))
            silent.connect(path)
            with contextlib.suppress(BrokenPipeError):  # it has its message, and was closed
                silent.send(b"x" * 1000)
        ended = threading.Event()

        def flood() -> None:
            while not ended.is_set():
                with socket.socket(socket.AF_UNIX) as each, contextlib.suppress(OSError):
                    each.connect(path)

        floods = [threading.Thread(target=flood) for _ in range(4)]
        for thread in floods:
            thread.start()
        try:
            for _ in range(5):
                assert fetch_ticket(path, PEER, PATIENT) is not None
        finally:
            ended.set()
            for thread in floods:
                thread.join()
        assert fetch_ticket(path, PEER, PATIENT) is not None


def test_a_failure_of_the_answer_does_not_end_the_socket(folder: Path) -> None:
    failures = iter([RuntimeError("once"), None])

    def answer(uid: int) -> TicketMessage:
        if (failure := next(failures)) is not None:
            raise failure
        return TicketMessage(uid, "sfu_x", 5)

    path = str(folder / "s.identity")
    with IdentitySocket(path, 0o666, answer) as listener:
        listener.start()
        with pytest.raises(ProtocolError):  # an empty message
            fetch_ticket(path, PEER, PATIENT)
        assert fetch_ticket(path, PEER, PATIENT) is not None


def test_a_listener_that_does_not_answer_is_an_outage(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(folder / "mute"))
        mute.listen()
        with pytest.raises(ServiceUnavailableError, match="identity socket"):
            fetch_ticket(str(folder / "mute"), PEER, 0.01)


def test_the_ticket_of_a_listener_of_another_user_is_not_read(folder: Path) -> None:
    """It could be that of another principal, for which outputs would then be stored."""
    message = TicketMessage(os.geteuid(), "sfu_foreign", 600).encode()
    folder.chmod(0o1777)
    with other_uid_process_at(folder / "s.identity", message) as log:
        with pytest.raises(ServiceUnavailableError, match="trusted user") as caught:
            fetch_ticket(str(folder / "s.identity"), PEER, PATIENT)
        assert caught.value.got == f"user id {OTHER_UID}"
        assert log.read_bytes() == b""


def test_a_bound_socket_is_opened_to_others_last(folder: Path) -> None:
    path = str(folder / "s")
    access = AccessControl(socket_mode=0o660)
    with socket.socket(socket.AF_UNIX) as ours:
        with binding(path, access) as identity:
            ours.bind(path)
            assert os.stat(path).st_mode & 0o777 == 0o600
        assert identity is not None
        assert os.stat(path).st_mode & 0o777 == 0o660
        assert os.stat(identity_path(path)).st_mode & 0o777 == 0o660
        identity.close()
        identity.close()
    os.unlink(path)
    with pytest.raises(ListenError), binding(path, access):  # the socket was replaced by a link
        os.symlink("/etc/hostname", path)
    assert not os.path.exists(identity_path(path))


# ---------------------------------------------------------------------------------------------- the policy


def policy(folder: Path, text: str) -> Path:
    path = folder / "policies.toml"
    write_atomically(path, text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[principals."a"]\nuids = [0]', "uids must be ids of users"),
        ('[principals."a"]\nuids = [-1]', "uids must be ids of users"),
        ('[principals."a"]\nuids = [4294967295]', "uids must be ids of users"),
        ('[principals."a"]\nuids = [65534]', "uids must be ids of users"),
        ('[principals."a"]\nuids = [true]', "uids"),
        ('[principals."a"]\nuids = ["alice"]', "uids"),
        ('[principals."a"]\nuids = 7', "uids"),
        ('[principals."a"]\nuids = [7]\n[principals."b"]\nuids = [7]', "must not share uids"),
        ('[principals."*"]\nuids = [7]', "must not have certificates or uids"),
    ],
)
def test_invalid_user_ids_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        read_policy_file(policy(tmp_path, text))


def test_the_servers_own_user_is_not_a_principals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    path = policy(tmp_path, '[principals."a"]\nuids = [1001]')
    with pytest.raises(InvalidConfigError, match="own user"):
        AccessControl(policy=path)


def test_tickets_follow_the_policy(tmp_path: Path) -> None:
    path = policy(tmp_path, '[principals."a"]\nuids = [1001, 1002]\n')
    access = AccessControl(policy=path, socket_mode=0o666)
    assert access.principals == {"a"}
    message = access.identify_user(1001)
    assert message.ticket is not None
    caller = access.authenticate(message.ticket, (), Peer.UNIX_SOCKET)
    assert (caller.principal, caller.credential) == ("a", "user 1001")
    for peer in (Peer.LOOPBACK, Peer.NETWORK):
        with pytest.raises(UnauthenticatedError, match="unix socket"):
            access.authenticate(message.ticket, (), peer)
    assert access.identify_user(1003).ticket is None
    for uid in (0, os.geteuid()):
        own = access.identify_user(uid).ticket
        assert access.authenticate(own, (), Peer.UNIX_SOCKET).principal == ""
    for anonymous in (Peer.UNIX_SOCKET, Peer.LOOPBACK):  # also while no principal has a token
        with pytest.raises(UnauthenticatedError):
            access.authenticate(None, (), anonymous)

    policy(tmp_path, '[principals."b"]\nuids = [1001]\n')
    access.refresh()
    assert not access.is_valid(caller), "calls in progress end"
    assert access.authenticate(message.ticket, (), Peer.UNIX_SOCKET).principal == "b"
    policy(tmp_path, "[principals]\n")
    access.refresh()
    with pytest.raises(UnauthenticatedError, match="user id 1001"):
        access.authenticate(message.ticket, (), Peer.UNIX_SOCKET)
    assert access.identify_user(1001).ticket is None

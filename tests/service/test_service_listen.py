"""Listen addresses: parsing, refusals, stale sockets."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from suffixsvc import SuffixCache
from suffixsvc.errors import ListenError
from suffixsvc.service.listeners.listen import TcpAddress, UnixAddress, parse_address, prepare
from suffixsvc_client import SuffixClient
from support.serving import serving, socket_dir


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        yield folder


@pytest.fixture
def cache() -> Iterator[SuffixCache]:
    with SuffixCache() as cache:
        yield cache


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("unix:/run/s.sock", UnixAddress("/run/s.sock"), "unix:/run/s.sock"),
        ("unix:///run/s.sock", UnixAddress("/run/s.sock"), "unix:/run/s.sock"),
        ("127.0.0.1:80", TcpAddress("127.0.0.1", 80), "127.0.0.1:80"),
        ("localhost:0", TcpAddress("localhost", 0), "localhost:0"),
        ("[::1]:8000", TcpAddress("::1", 8000), "[::1]:8000"),
    ],
)
def test_addresses(text: str, address: object, shown: str) -> None:
    assert parse_address(text) == address
    assert str(parse_address(text)) == shown


@pytest.mark.parametrize(
    "text",
    ["", "unix:", "8000", ":8000", "host:", "host:x", "host:65536", "host:-1", "127.0.0.1:" + "1" * 5000],
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ListenError) as caught:
        parse_address(text)
    assert caught.value.expected is not None


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "\ud800"])
@pytest.mark.parametrize("insecure_network", [False, True])
def test_a_host_that_no_dns_can_name_is_refused(host: str, insecure_network: bool) -> None:
    with pytest.raises(ListenError, match="a host of this machine"):
        prepare(parse_address(f"{host}:80"), insecure_network=insecure_network)


def test_a_relative_socket_path_is_made_absolute(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.chdir(folder)
    assert str(parse_address("unix:s.sock")) == f"unix:{os.getcwd()}/s.sock"


def test_a_socket_path_has_a_longest_length(folder: Path) -> None:
    longest = str(folder) + "/" + "x" * (107 - len(str(folder)) - 1)
    prepare(parse_address(f"unix:{longest}"))
    with pytest.raises(ListenError, match="108 bytes"):
        parse_address(f"unix:{longest}x")


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1"])
def test_addresses_others_can_reach_need_saying_so(host: str) -> None:
    with pytest.raises(ListenError, match="--insecure-network"):
        prepare(parse_address(f"{host}:0"))
    if host == "0.0.0.0":
        prepare(parse_address(f"{host}:0"), insecure_network=True)


def test_a_busy_port_is_not_shared(cache: SuffixCache) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ListenError, match="free port"), serving(cache, f"127.0.0.1:{port}"):
            pass


def test_a_port_in_use_is_not_shared(cache: SuffixCache) -> None:
    with serving(cache, "127.0.0.1:0") as (_, address), pytest.raises(ListenError), serving(cache, address):
        pass


def test_the_socket_belongs_to_its_owner_alone(cache: SuffixCache, folder: Path) -> None:
    with serving(cache, f"unix:{folder}/s.sock"):
        assert stat.S_IMODE((folder / "s.sock").stat().st_mode) == 0o600
    assert not (folder / "s.sock").exists(), "the socket file is left"


def test_a_stale_socket_is_replaced(cache: SuffixCache, folder: Path) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(folder / "s.sock"))
    dead.close()  # no listener; the file stays, as after kill -9
    assert (folder / "s.sock").exists()
    with serving(cache, f"unix:{folder}/s.sock") as (_, address), SuffixClient(address) as client:
        assert client.server_info().instance_id


def test_a_live_socket_is_not_replaced(cache: SuffixCache, folder: Path) -> None:
    with serving(cache, f"unix:{folder}/s.sock") as (_, address), SuffixClient(address) as client:
        before = client.server_info().instance_id
        with pytest.raises(ListenError, match="live server"), serving(cache, address):
            pass
        assert client.server_info().instance_id == before


def test_a_file_other_than_a_socket_is_not_replaced(cache: SuffixCache, folder: Path) -> None:
    (folder / "s.sock").write_text("precious")
    with pytest.raises(ListenError, match="other than a socket"), serving(cache, f"unix:{folder}/s.sock"):
        pass
    assert (folder / "s.sock").read_text() == "precious"


def test_a_missing_folder(cache: SuffixCache, folder: Path) -> None:
    with pytest.raises(ListenError, match="a folder"), serving(cache, f"unix:{folder}/no/s.sock"):
        pass


def test_a_folder_that_takes_no_sockets_is_named(cache: SuffixCache, folder: Path) -> None:
    """What happened: the error was a dump of gRPC's own status. Not even root can create a socket in /sys."""
    with pytest.raises(ListenError) as caught, serving(cache, "unix:/sys/s.sock"):
        pass
    head, got = str(caught.value).split("; got ")
    assert head == ("cannot listen on unix:/sys/s.sock: this user must be able to create sockets in /sys")
    assert got.startswith(("Operation not permitted.", "Permission denied.", "Read-only file system."))
    (folder / "file").write_text("")
    with pytest.raises(ListenError, match="got a file"), serving(cache, f"unix:{folder}/file/s.sock"):
        pass

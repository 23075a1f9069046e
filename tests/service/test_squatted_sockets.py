"""A process of another user at a socket's path is sent nothing, and no service starts there.

What happened: a user who may create files in the socket's folder, such as /tmp, listened at PATH.direct
before the service did. The service only logged a warning and started; the client connected there, was
greeted, and sent the namespace and the whole prompt.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from suffixsvc import SuffixCache
from suffixsvc.errors import InvalidConfigError, ListenError, ServiceUnavailableError
from suffixsvc.frames import DIRECT_SUFFIX
from suffixsvc.service.listeners.listen import parse_address, prepare
from suffixsvc_client import AsyncSuffixClient, ClientConfig, SuffixClient
from support.other_uid_process import OTHER_UID, answers, other_uid_process_at
from support.serving import PATIENCE_S, ServeProcess, serving, socket_dir

PROMPT = list(range(1000, 1010))
CONFIG = ClientConfig(step_timeout_s=300, open_timeout_s=300)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder like /tmp: any user may create files, but not remove those of others."""
    with socket_dir() as folder:
        folder.chmod(0o1777)
        yield folder


def heard_secrets(log: Path) -> list[bytes]:
    heard = log.read_bytes()
    return [each for each in (b"secret", np.array(PROMPT[2:4], "<i4").tobytes()) if each in heard]


def require_a_named_refusal(caught: pytest.ExceptionInfo[ListenError], path: str) -> None:
    assert path in str(caught.value)
    assert caught.value.expected
    assert caught.value.remedy


# ----------------------------------------------------------------------------------------------- the service


def test_the_service_does_not_start_with_a_process_of_another_user_at_its_direct_socket(folder: Path) -> None:
    with other_uid_process_at(folder / f"s{DIRECT_SUFFIX}"), SuffixCache() as cache:
        with pytest.raises(ListenError) as caught, serving(cache, f"unix:{folder}/s"):
            pass
        require_a_named_refusal(caught, f"{folder}/s{DIRECT_SUFFIX}")
        assert answers(folder / f"s{DIRECT_SUFFIX}"), "the other process's socket is left alone"
        assert not (folder / "s").exists()


def test_the_command_fails_before_recovery(folder: Path) -> None:
    with other_uid_process_at(folder / f"s.sock{DIRECT_SUFFIX}"):
        serve = ServeProcess(folder)
        process = serve.launch()
        _, output = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 2
        assert f"s.sock{DIRECT_SUFFIX}" in output
        assert "Traceback" not in output
        assert not (folder / "data").exists()


@pytest.mark.parametrize("suffix", ["", DIRECT_SUFFIX])
def test_an_obstacle_at_the_path_is_named(folder: Path, suffix: str) -> None:
    """A folder, a file, or the socket of a live process of the same user."""
    path = folder / f"s{suffix}"
    makers: list[Callable[[], object]] = [path.mkdir, path.touch]
    for make in makers:
        make()
        with SuffixCache() as cache, pytest.raises(ListenError) as caught, serving(cache, f"unix:{folder}/s"):
            pass
        require_a_named_refusal(caught, str(path))
        path.rmdir() if path.is_dir() else path.unlink()
    with socket.socket(socket.AF_UNIX) as ours:
        ours.bind(str(path))
        ours.listen()
        with SuffixCache() as cache, pytest.raises(ListenError, match="live server"):
            prepare(parse_address(f"unix:{folder}/s"))


def test_a_stale_direct_socket_is_replaced(folder: Path) -> None:
    for suffix in ("", DIRECT_SUFFIX):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(folder / f"s{suffix}"))
    with (
        SuffixCache() as cache,
        serving(cache, f"unix:{folder}/s") as (_, address),
        SuffixClient(address) as client,
    ):
        assert client.namespace("a").open_session([1]).close() is None
    assert os.listdir(folder) == []


# ------------------------------------------------------------------------------------------------ the client


def test_a_process_of_another_user_at_the_direct_socket_is_sent_nothing(folder: Path) -> None:
    """It replaces the direct socket of a running service. Sessions use gRPC, whose socket is
    the service's."""
    with SuffixCache() as cache, serving(cache, f"unix:{folder}/s") as (_, address):
        (folder / f"s{DIRECT_SUFFIX}").unlink()
        with (
            other_uid_process_at(folder / f"s{DIRECT_SUFFIX}") as log,
            SuffixClient(address, CONFIG) as client,
        ):
            session = client.namespace("secret").open_session(PROMPT)
            session.step([7])
            assert session.close() is not None
            assert log.read_bytes() == b""
            assert client.counts.steps == 1


@pytest.mark.parametrize("direct", [True, False])
def test_a_process_of_another_user_at_the_main_socket_is_sent_nothing(folder: Path, direct: bool) -> None:
    with other_uid_process_at(folder / "s") as log:
        config = ClientConfig(step_timeout_s=5, open_timeout_s=5, call_timeout_s=5, direct=direct)
        with SuffixClient(f"unix:{folder}/s", config) as client:
            with pytest.raises(ServiceUnavailableError, match="trusted user") as caught:
                client.server_info()
            assert caught.value.got == f"user id {OTHER_UID}"
            assert caught.value.remedy
            session = client.namespace("secret").open_session(PROMPT)
            session.step([7])
            with pytest.raises(ServiceUnavailableError):
                session.close()
        assert heard_secrets(log) == []
        assert log.read_bytes() == b""


def test_a_process_of_another_user_is_sent_nothing_by_the_asyncio_client(folder: Path) -> None:
    async def ask(log: Path) -> None:
        async with AsyncSuffixClient(f"unix:{folder}/s", ClientConfig(call_timeout_s=5)) as client:
            with pytest.raises(ServiceUnavailableError, match="trusted user"):
                await client.server_info()
            session = await client.namespace("secret").open_session(PROMPT)
            await session.step([7])
        assert log.read_bytes() == b""

    with other_uid_process_at(folder / "s") as log:
        asyncio.run(ask(log))


def test_a_later_process_of_another_user_is_detected(folder: Path) -> None:
    """A connected client checks again when the socket file is replaced."""
    with SuffixCache() as cache, SuffixClient(f"unix:{folder}/s", ClientConfig(call_timeout_s=5)) as client:
        with serving(cache, f"unix:{folder}/s"):
            client.server_info()
        with other_uid_process_at(folder / "s") as log:
            with pytest.raises(ServiceUnavailableError, match="trusted user"):
                client.server_info()
            assert log.read_bytes() == b""
        (folder / "s").unlink()
        with serving(cache, f"unix:{folder}/s"):
            assert client.server_info().instance_id, "the service is trusted again"


def test_a_service_of_another_user_can_be_named(folder: Path) -> None:
    """The other process's user is the service's, by setting; or owns the folder."""
    with other_uid_process_at(folder / f"s{DIRECT_SUFFIX}") as log:
        config = ClientConfig(step_timeout_s=1, open_timeout_s=1, service_uid=OTHER_UID)
        with SuffixClient(f"unix:{folder}/s", config) as client:
            client.namespace("secret").open_session(PROMPT)
        assert heard_secrets(log) != []
    os.chown(folder, OTHER_UID, OTHER_UID)
    (folder / f"s{DIRECT_SUFFIX}").unlink()
    with other_uid_process_at(folder / f"s{DIRECT_SUFFIX}") as log:
        with SuffixClient(f"unix:{folder}/s", ClientConfig(open_timeout_s=1)) as client:
            client.namespace("secret").open_session(PROMPT)
        assert heard_secrets(log) != []


@pytest.mark.parametrize("value", [-1, True, 1.5, "root"])
def test_an_invalid_user_id_is_refused(value: object) -> None:
    with pytest.raises(InvalidConfigError, match="service_uid must be a user id"):
        ClientConfig(service_uid=value)  # type: ignore[arg-type] # refused

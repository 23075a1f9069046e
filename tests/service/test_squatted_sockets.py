"""A process of another user at a socket's path is sent nothing, and no service starts there.

What happened: a user who may create files in the socket's folder, such as /tmp, listened there before the
service did. The client connected, was greeted, and sent the namespace and the whole prompt.
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
from suffixsvc.service.listeners.listen import parse_address, prepare
from suffixsvc_client import AsyncSuffixClient, ClientConfig, SuffixClient
from support.other_uid_process import OTHER_UID, answers, other_uid_process_at
from support.serving import PATIENCE_S, ServeProcess, serving, socket_dir

PROMPT = list(range(1000, 1010))


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


def test_the_service_does_not_start_with_a_process_of_another_user_at_its_socket(folder: Path) -> None:
    with other_uid_process_at(folder / "s"), SuffixCache() as cache:
        with pytest.raises(ListenError) as caught, serving(cache, f"unix:{folder}/s"):
            pass
        require_a_named_refusal(caught, f"{folder}/s")
        assert answers(folder / "s"), "the other process's socket is left alone"


def test_the_command_fails_before_recovery(folder: Path) -> None:
    with other_uid_process_at(folder / "s.sock"):
        serve = ServeProcess(folder)
        process = serve.launch()
        _, output = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 2
        assert "s.sock" in output
        assert "Traceback" not in output
        assert not (folder / "data").exists()


def test_an_obstacle_at_the_path_is_named(folder: Path) -> None:
    """A folder, a file, or the socket of a live process of the same user."""
    path = folder / "s"
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


# ------------------------------------------------------------------------------------------------ the client


def test_a_process_of_another_user_at_the_socket_is_sent_nothing(folder: Path) -> None:
    with other_uid_process_at(folder / "s") as log:
        config = ClientConfig(step_timeout_s=5, open_timeout_s=5, call_timeout_s=5)
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
    with other_uid_process_at(folder / "s") as log:
        config = ClientConfig(step_timeout_s=1, open_timeout_s=1, service_uid=OTHER_UID)
        with SuffixClient(f"unix:{folder}/s", config) as client:
            client.namespace("secret").open_session(PROMPT)
        assert heard_secrets(log) != []
    os.chown(folder, OTHER_UID, OTHER_UID)
    (folder / "s").unlink()
    with other_uid_process_at(folder / "s") as log:
        with SuffixClient(f"unix:{folder}/s", ClientConfig(open_timeout_s=1)) as client:
            client.namespace("secret").open_session(PROMPT)
        assert heard_secrets(log) != []


@pytest.mark.parametrize("value", [-1, True, 1.5, "root"])
def test_an_invalid_user_id_is_refused(value: object) -> None:
    with pytest.raises(InvalidConfigError, match="service_uid must be a user id"):
        ClientConfig(service_uid=value)  # type: ignore[arg-type] # refused

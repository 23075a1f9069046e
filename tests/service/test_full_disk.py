"""A service on a full file system, a real one: its log, errors, health and view name the disk, once."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest

from suffixsvc.errors import StoreFullError
from suffixsvc_client import ClientConfig, SuffixClient
from support.command_line import run_verb
from support.serving import ServeProcess, eventually, socket_dir
from support.small_disk import small_disk

CONFIG = ClientConfig(step_timeout_s=300, open_timeout_s=300, call_timeout_s=300)
CONSTANTS = {
    "suffixsvc.store.lmdb_log.committer._MAX_BACKOFF_SECONDS": 0.1,
    "suffixsvc.service.server.CHECK_INTERVAL_SECONDS": 0.05,
}
REASON = "No space left on device"


def fill(disk: Path) -> Path:
    """Use up all room of a file system; the file to remove."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        for size in (1 << 20, 1 << 12):
            with suppress(OSError):
                while True:
                    os.write(file.fileno(), bytes(size))
    return ballast


def add_until_full(client: SuffixClient) -> StoreFullError:
    """The error of the first output that does not fit, once not even a small one does."""
    for number in range(3000):
        if client.stats().store_failing:
            break
        with suppress(StoreFullError):
            client.namespace("a").add_output(range(number * 5000, (number + 1) * 5000))
    with pytest.raises(StoreFullError) as raised:
        client.namespace("a").add_output(range(9_000_000, 9_100_000))
    return raised.value


def test_a_full_disk_is_named_and_logged_once() -> None:
    with socket_dir() as folder, small_disk(folder / "data", 24 << 20) as disk:
        serving = ServeProcess(folder, "--log-format", "json", constants=CONSTANTS)
        with serving.start() as serve:
            with SuffixClient(serve.address, CONFIG) as client:
                ballast = fill(disk)
                error = add_until_full(client)
                assert REASON in str(error)
                assert "MDB_MAP_FULL" not in str(error)
                assert str(disk) not in str(error), "every caller may read it"
                assert REASON in str(client.server_info().store_failure)

                def health() -> bool:
                    asked = run_verb("health", serve.address, "--durability")
                    return asked.returncode == 1 and REASON in asked.stdout

                eventually(health, "health says why")
                top = run_verb("top", "--server", serve.address, "--once", "--interval", "0.1")
                assert f"cannot store: {error.message}"[:60] in top.stdout
                shown = run_verb("top", "--server", serve.address, "--once", "--json", "--interval", "0.1")
                assert REASON in json.loads(shown.stdout)["store"]["failure"]
                ballast.unlink()
                eventually(lambda: not client.stats().store_failing, "there is room again")
                assert run_verb("health", serve.address, "--durability").returncode == 0
                client.namespace("a").add_output([1, 2, 3])
            assert serve.terminate() == 0
            lines = [json.loads(line) for line in serve.output().splitlines() if line.startswith("{")]
    events = [line for line in lines if line["event"] in ("store has no room", "store has room again")]
    assert [line["event"] for line in events] == ["store has no room", "store has room again"]
    assert events[0]["level"] == "warning"
    assert REASON in events[0]["error"]

"""Backups of running services: the call, the verbs, and what ends them."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from backup_testing import NS, contents, contents_of, open_cache, output

from suffixsvc import SuffixCache
from suffixsvc.access.control import Peer
from suffixsvc.engine.backup.manifest import read_manifest
from suffixsvc.engine.repair.inspection import check_folder
from suffixsvc.errors import (
    InvalidConfigError,
    InvalidInputError,
    LimitExceededError,
    ServiceUnavailableError,
)
from suffixsvc.runtime.sync_points import SyncPoint
from suffixsvc.service import servicer
from suffixsvc.service.server import SuffixServer
from suffixsvc.store.copies import log_copy
from suffixsvc_client import ClientConfig, SuffixClient
from support.command_line import run_verb
from support.serving import ServeProcess, eventually, serving, socket_dir

CONFIG = ClientConfig(call_timeout_s=300)


@contextlib.contextmanager
def served(tmp_path: Path, sync_point: SyncPoint) -> Iterator[tuple[SuffixCache, SuffixServer, SuffixClient]]:
    with (
        socket_dir() as folder,
        open_cache(tmp_path / "data", sync_point) as cache,
        serving(cache, f"unix:{folder / 's.sock'}") as (server, address),
        SuffixClient(address, CONFIG) as client,
    ):
        random = Random(3)
        cache.namespace(NS).add_outputs([output(random) for _ in range(40)])
        cache.seal()
        yield cache, server, client


class Gate:
    """Holds a backup at its first page until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, name: str) -> None:
        if name == "backup-page":
            self.reached.set()
            assert self.opened.wait(300)


def test_a_service_is_backed_up_and_restored_by_the_verbs(tmp_path: Path) -> None:
    random = Random(1)
    with socket_dir() as folder:
        with ServeProcess(folder).start() as process:
            with SuffixClient(process.address, CONFIG) as client:
                ids = client.namespace(NS).add_outputs([output(random) for _ in range(50)])
                client.namespace(NS).delete(output_ids=[ids[7]])
                done = run_verb("backup", folder / "b", "--server", process.address, "--json")
                assert done.returncode == 0, done.stderr
                assert json.loads(done.stdout)["outputs"] == 49
                client.namespace(NS).add_outputs([output(random) for _ in range(5)])
            text = run_verb("backup", folder / "b", "--server", process.address)
            assert text.returncode == 2
            assert "new or an empty folder" in text.stderr
            process.terminate()
        assert run_verb("check", "--data", folder / "b").returncode == 0
        (folder / "data").rename(folder / "old")
        restored = run_verb("restore", folder / "b", "--data", folder / "data", "--json")
        assert restored.returncode == 0, restored.stderr
        assert json.loads(restored.stdout)["rebuilt_segments"] == []
        with ServeProcess(folder).start() as process, SuffixClient(process.address, CONFIG) as client:
            assert client.stats().outputs == 49
            assert "backup" in client.server_info().features


def test_the_verbs_of_a_folder_and_their_exit_codes(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with open_cache(data) as cache:
        cache.namespace(NS).add_outputs([output(Random(2)) for _ in range(20)])
        cache.seal()
    assert "20 outputs" in run_verb("backup", tmp_path / "b", "--data", data).stdout
    assert run_verb("backup", tmp_path / "c").returncode == 2
    sound = run_verb("check", "--data", data, "--json")
    assert (sound.returncode, json.loads(sound.stdout)["findings"]) == (0, [])
    assert "nothing to repair" in run_verb("repair", "--data", data).stdout
    victim = next((data / "segments").iterdir())
    victim.unlink()
    found = run_verb("check", "--data", data, "--json")
    assert found.returncode == 1
    assert json.loads(found.stdout)["findings"][0]["area"] == "segments"
    assert victim.name in run_verb("check", "--data", data).stdout
    planned = run_verb("repair", "--data", data, "--dry-run")
    assert "dry run" in planned.stdout
    assert victim.name in planned.stdout
    assert run_verb("check", "--data", data).returncode == 1
    done = run_verb("repair", "--data", data, "--json")
    assert json.loads(done.stdout)["rebuilt"] == [victim.name]
    assert run_verb("check", "--data", data).returncode == 0
    for verb in ("check", "repair"):
        assert run_verb(verb, "--data", tmp_path / "none").returncode == 2
    assert run_verb("restore", tmp_path / "none", "--data", tmp_path / "r").returncode == 2


def test_a_check_of_a_backup_is_as_strict_as_restore(tmp_path: Path) -> None:
    with open_cache(tmp_path / "data") as cache:
        cache.namespace(NS).add_outputs([output(Random(2)) for _ in range(20)])
        cache.seal()
        cache.backup(tmp_path / "b")
    sound = run_verb("check", "--data", tmp_path / "b")
    assert (sound.returncode, "as its backup.json says" in sound.stdout) == (0, True), sound.stdout
    assert "backup.json" not in run_verb("check", "--data", tmp_path / "data").stdout
    path = tmp_path / "b" / "data.mdb"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1  # of a page that no record uses
    path.write_bytes(raw)
    assert check_folder(tmp_path / "b") == []
    refused = run_verb("restore", tmp_path / "b", "--data", tmp_path / "r")
    assert (refused.returncode, (tmp_path / "r").exists()) == (2, False)
    found = run_verb("check", "--data", tmp_path / "b", "--json")
    assert found.returncode == 1
    report = json.loads(found.stdout)
    assert report["manifest_verified"] is False
    assert [each["area"] for each in report["findings"]] == ["backup"]
    digest = read_manifest(tmp_path / "b").data.xxh3
    assert digest in refused.stderr
    assert digest in report["findings"][0]["message"]
    assert "remove its backup.json" in run_verb("check", "--data", tmp_path / "b").stderr
    (tmp_path / "b" / "backup.json").unlink()
    assert run_verb("check", "--data", tmp_path / "b").returncode == 0


def test_a_check_of_a_backup_names_a_segment_of_another_size(tmp_path: Path) -> None:
    with open_cache(tmp_path / "data") as cache:
        cache.namespace(NS).add_outputs([output(Random(2)) for _ in range(20)])
        cache.seal()
        cache.backup(tmp_path / "b")
    victim = next((tmp_path / "b" / "segments").iterdir())
    raw = victim.read_bytes()
    victim.unlink()  # it is a link
    victim.write_bytes(raw[:-1])
    found = run_verb("check", "--data", tmp_path / "b", "--json")
    assert found.returncode == 1
    first = json.loads(found.stdout)["findings"][0]
    assert (first["area"], victim.name in first["message"]) == ("backup", True)


def test_steps_and_writes_go_on_during_a_backup(tmp_path: Path) -> None:
    gate = Gate()
    with served(tmp_path, gate) as (cache, _, client):
        shown: list[tuple[int, int]] = []
        results: list[object] = []
        backup = threading.Thread(
            target=lambda: results.append(
                client.backup(tmp_path / "b", progress=lambda *step: shown.append(step))
            )
        )
        backup.start()
        assert gate.reached.wait(300)
        session = client.namespace(NS).open_session([1, 2, 3])
        session.step([4, 5])
        stored = session.close()
        assert stored in contents(cache), "durable while the backup is in progress"
        with pytest.raises(LimitExceededError, match="backups"):
            client.backup(tmp_path / "c")
        gate.opened.set()
        backup.join()
        assert results
        assert shown[-1] == (41, 41)
        wanted = contents(cache)
    assert check_folder(tmp_path / "b") == []
    assert contents_of(tmp_path / "b") == wanted
    assert stored in wanted
    assert not (tmp_path / "c").exists()


def test_a_client_that_goes_away_ends_its_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_copy, "_ROWS", 1)

    class LostError(Exception):
        pass

    def leave(_outputs: int, _total: int) -> None:
        raise LostError

    with served(tmp_path, lambda name: None) as (cache, _, client):
        with pytest.raises(LostError):
            client.backup(tmp_path / "b", progress=leave)
        eventually(lambda: sorted(os.listdir(tmp_path)) in (["data"], ["b", "data"]), "the call has ended")
        if (tmp_path / "b").exists():  # it was complete before the service noticed
            assert read_manifest(tmp_path / "b").outputs == 40

        def again() -> bool:
            with contextlib.suppress(LimitExceededError):  # the folder is gone before the call has ended
                client.backup(tmp_path / "again")
                return True
            return False

        eventually(again, "another backup is admitted")
        wanted = contents(cache)
    assert contents_of(tmp_path / "again") == wanted


def test_a_service_that_stops_ends_a_backup(tmp_path: Path) -> None:
    gate = Gate()
    with served(tmp_path, gate) as (_, server, client):
        errors: list[BaseException] = []

        def back_up() -> None:
            with pytest.raises(ServiceUnavailableError) as raised:
                client.backup(tmp_path / "b")
            errors.append(raised.value)

        backup = threading.Thread(target=back_up)
        backup.start()
        assert gate.reached.wait(300)
        draining = threading.Thread(target=server.drain)
        draining.start()
        backup.join()
        gate.opened.set()
        draining.join()
        assert errors
        eventually(lambda: sorted(os.listdir(tmp_path)) == ["data"], "nothing is left of it")


def test_refused_calls_say_why(tmp_path: Path) -> None:
    with served(tmp_path, lambda name: None) as (_, _, client):
        for folder in ("backup", "/nowhere/backup", "/tmp/\0"):
            with pytest.raises(InvalidInputError) as raised:
                client.backup(folder)
            assert raised.value.message
    with (
        socket_dir() as folder,
        SuffixCache() as cache,
        serving(cache, f"unix:{folder / 's.sock'}") as (_, address),
        SuffixClient(address, CONFIG) as client,
        pytest.raises(InvalidConfigError, match="data folder"),
    ):
        client.backup(folder / "b")


def test_a_client_on_another_host_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servicer, "peer_of", lambda _peer: Peer.NETWORK)
    with served(tmp_path, lambda name: None) as (_, _, client):
        with pytest.raises(InvalidInputError, match="service's host"):
            client.backup(tmp_path / "backup")
        assert not (tmp_path / "backup").exists()

"""A real service is killed with SIGKILL again and again.

Meanwhile it is written to, deletes, seals, merges, erases, writes backups and sends followers the log. After
every kill the folder is checked and compared with what was acknowledged, before another process has opened
it; then it is recovered, and in some rounds closed and checked again.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from record_writers import CLIENT, RETRIED, Writers
from write_record import PATHS, Row, WriteRecord

from suffixsvc.engine.backup.restore import restore
from suffixsvc.engine.repair.inspection import check_folder
from suffixsvc.store import LmdbStore
from suffixsvc_client import SuffixClient
from suffixsvc_follower import Follower, FollowerConfig
from support.command_line import run_verb
from support.following import held
from support.serving import ServeProcess, eventually, socket_dir

#: seals from two thousand tokens on, and erases, all the time
CONSTANTS = {
    "suffixsvc.engine.sealing.maintenance._PERIOD_SECONDS": 0.05,
    "suffixsvc.engine.sealing.maintenance._MAX_HOT_BATCHES": 2000 / (1 << 20),
    "suffixsvc.engine.sealing.maintenance._SMALLEST_SHARE": 1e9,
    "suffixsvc.engine.sealing.eraser._PAUSE_SECONDS": 0.3,
}
#: kills of one data folder: checks take as long as the folder is large
KILLS_OF_A_FOLDER = 40


@dataclass
class Seen:
    """What happened, for the table."""

    kills: Counter[str] = field(default_factory=Counter)
    checks: int = 0
    backups: Counter[str] = field(default_factory=Counter)
    segments: set[str] = field(default_factory=set)
    current: set[str] = field(default_factory=set)
    merged: set[str] = field(default_factory=set)
    acknowledged: Counter[str] = field(default_factory=Counter)
    refusals: int = 0


def test_kills_lose_nothing_and_invent_nothing(full: bool, figure: Callable[..., None]) -> None:
    seed = int(os.environ.get("RELIABILITY_SEED", "1"))
    kills = int(os.environ.get("RELIABILITY_KILLS", "1000" if full else "30"))
    print(f"RELIABILITY_SEED={seed} RELIABILITY_KILLS={kills}")
    seen, rng = Seen(), Random(seed)
    while (left := kills - seen.kills.total()) > 0:
        life_of_a_folder(rng, min(left, KILLS_OF_A_FOLDER), seen)
    figure("kill -9 of the service", seen.kills.total(), f"{kills}")
    for moment, times in sorted(seen.kills.items()):
        figure(f"  {moment}", times)
    figure("checks of a folder, all clean", seen.checks, "after every kill, before and after a recovery")
    figure("acknowledged outputs, none lost", seen.acknowledged["acknowledged"], "0 lost, 0 twice")
    figure("acknowledged deletions, none back", seen.acknowledged["deleted"], "0 back")
    figure("unanswered writes, whole or absent", seen.acknowledged["unanswered"], "0 invented")
    figure("refused calls that were repeated", seen.refusals)
    figure("segments written, merged away", f"{len(seen.segments)}, {len(seen.merged)}", "some")
    for end, times in sorted(seen.backups.items()):
        figure(f"backups: {end}", times, "complete or absent")
    assert seen.acknowledged["acknowledged"]
    assert seen.acknowledged["deleted"]
    assert seen.segments
    assert seen.merged
    assert seen.backups["acknowledged, restored"]


def life_of_a_folder(rng: Random, kills: int, seen: Seen) -> None:
    """One data folder, from its creation to a clean end."""
    config = FollowerConfig(client=CLIENT, connect_seconds=60)
    followed = [(path, "") for path in PATHS]
    with socket_dir() as folder, ServeProcess(folder, constants=CONSTANTS) as service:
        data, record = folder / "data", WriteRecord()
        writers = Writers(record, rng.random())
        service.start()
        with Follower(service.address, config, followed) as reader:
            with (
                SuffixClient(service.address, CLIENT) as client,
                SuffixClient(service.address, CLIENT) as other,
                Follower(service.address, config, followed) as follower,
            ):
                writers.start(writers.add_outputs, client)
                writers.start(writers.write_sessions, client)
                writers.start(writers.write_sessions, follower)
                writers.start(back_up, writers, other, folder, seen)
                for number in range(kills):
                    kill(service, rng, seen)
                    writers.require_alive()
                    compare(data, record, seen)
                    service.start()
                    if number % 5 == 4:  # closed at once: what a recovery leaves, without new writes
                        assert service.terminate() == 0
                        compare(data, record, seen)
                        service.start()
                writers.stop()
                for path in PATHS:
                    wanted = record.stored_ids(path)
                    eventually(lambda path=path, ids=wanted: ids <= held(reader, path), "it is followed")
            assert service.terminate() == 0
            rows = compare(data, record, seen)
            service.start()
            for path in PATHS:
                wanted = {row.output_id for row in rows if row.path == path}
                eventually(lambda path=path, ids=wanted: held(reader, path) == ids, "it holds the log")
        seen.acknowledged.update(record.counts())
        seen.refusals += writers.refusals


def kill(service: ServeProcess, rng: Random, seen: Seen) -> None:
    """Kill the service some time after its start; sometimes again while it recovers."""
    time.sleep(rng.uniform(0.0, 0.8))
    service.kill()
    seen.kills["while it served"] += 1
    require_no_defect(service)
    if rng.random() < 0.2:
        process = service.process = service.launch()
        time.sleep(rng.uniform(0.0, 0.15))
        ready = service.ready_file.exists()
        process.kill()
        process.wait(300)
        seen.kills["while it served" if ready else "while it recovered"] += 1
        require_no_defect(service)


def require_no_defect(service: ServeProcess) -> None:
    """Assert that the log of a process that has ended has no traceback."""
    assert service.process is not None
    assert service.process.stderr is not None
    told = service.output()
    service.process.stderr.close()
    assert "Traceback" not in told, told[-4000:]


def compare(data: Path, record: WriteRecord, seen: Seen) -> list[Row]:
    """Check a folder that no process has open, and compare it with the record."""
    run = run_verb("check", "--data", data)
    assert run.returncode == 0, run.stdout + run.stderr
    seen.checks += 1
    rows, names = rows_of(data)
    record.compare(rows)
    seen.merged |= (seen.segments & seen.current) - names
    seen.segments |= names
    seen.current = names
    return rows


def rows_of(data: Path) -> tuple[list[Row], set[str]]:
    """Recover the log of a folder; its outputs, and the files of its manifest."""
    store = LmdbStore(data)
    try:
        store.check()
        return [Row.of(stored) for stored in store.scan()], store.segment_names()
    finally:
        store.close()


def back_up(writers: Writers, client: SuffixClient, folder: Path, seen: Seen, rng: Random) -> None:
    """Write backups; each is complete, also if its answer was lost, or it is not there."""
    while not writers.stopping.is_set():
        target = folder / f"backup-{rng.randrange(3)}"
        before = writers.record.moment()
        try:
            client.backup(target)
        except RETRIED:
            outcome = "unanswered"
        else:
            outcome = "acknowledged"
            assert target.is_dir()
        if not target.exists():
            seen.backups[f"{outcome}, absent"] += 1
            time.sleep(0.05)
            continue
        assert check_folder(target) == []
        restored = folder / "restored"
        if rng.random() < 0.5:
            restore(target, restored)
            outcome += ", restored"
        else:
            target.rename(restored)
            outcome += ", opened"
        writers.record.compare(rows_of(restored)[0], before)
        seen.backups[outcome] += 1
        shutil.rmtree(target, ignore_errors=True)
        shutil.rmtree(restored)

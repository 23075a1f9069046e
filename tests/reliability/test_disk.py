"""A real service on a disk that fails at every call, is full or read-only, writes in part or loses pages.

It says so, loses nothing that it acknowledged, goes on drafting, and recovers by itself. So it does without
descriptors.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from record_writers import CLIENT
from write_record import WIDTH, Row, WriteRecord, tokens_of

from suffixsvc.engine.repair.inspection import check_folder
from suffixsvc.engine.repair.rebuild import repair_folder
from suffixsvc.errors import ServiceError, StoreCorruptError, StoreError, StoreFullError, SuffixError
from suffixsvc.store import LmdbStore
from suffixsvc.store.files.page_walk import META, unpack_meta
from suffixsvc.types import NewOutput
from suffixsvc_client import ClientConfig, SuffixClient
from support.command_line import run_verb
from support.faulty_disk import Calls, FaultyDisk
from support.serving import ServeProcess, eventually, socket_dir
from support.small_disk import small_disk

#: seals from two thousand tokens on, retries soon, and tells its health soon
CONSTANTS = {
    "suffixsvc.engine.sealing.maintenance._PERIOD_SECONDS": 0.02,
    "suffixsvc.engine.sealing.maintenance._FIRST_PAUSE_SECONDS": 0.05,
    "suffixsvc.engine.sealing.maintenance._MAX_PAUSE_SECONDS": 0.1,
    "suffixsvc.engine.sealing.maintenance._MAX_HOT_BATCHES": 2000 / (1 << 20),
    "suffixsvc.engine.sealing.maintenance._SMALLEST_SHARE": 1e9,
    "suffixsvc.store.lmdb_log.committer._MAX_BACKOFF_SECONDS": 0.1,
    "suffixsvc.service.server.CHECK_INTERVAL_SECONDS": 0.05,
}
PATH = "crash/a"
#: a text that drafts are asked for, in a namespace that nothing else is written to
KNOWN = list(range(1000, 1060))


class Disked:
    """A service, its client, and what it acknowledged."""

    def __init__(self, service: ServeProcess, record: WriteRecord) -> None:
        self.service, self.record = service, record
        self.client = SuffixClient(service.address, CLIENT)
        self.open_closes: list[tuple[int, object]] = []
        self.refused: list[SuffixError] = []

    def drafts(self, path: str = "known", text: Sequence[int] = KNOWN) -> bool:
        """Whether a text of a namespace is drafted."""
        with self.client.namespace(path).open_session([1], private=True) as session:
            found = session.step(text[:20], max_draft_tokens=4).token_ids.tolist()
        return len(found) > 0 and found == text[20 : 20 + len(found)]

    def teach(self) -> None:
        self.client.namespace("known").add_output(KNOWN, [1])
        assert self.drafts()

    def write_all_kinds(self, rng: Random, backup: Path) -> None:
        """One write of each kind, an output that is sealed, and a backup; what is refused is noted."""
        self.add([rng.randrange(1, WIDTH) for _ in range(3)])
        self.add([WIDTH] * 40)  # enough for a segment
        self.write_session(rng)
        self.delete_one(rng)
        with suppress(ServiceError, StoreError):
            self.client.backup(backup)
            assert check_folder(backup) == []
        shutil.rmtree(backup, ignore_errors=True)

    def add(self, lengths: list[int]) -> None:
        """Add outputs in one message; a key is also the uuid, which names one output for good."""
        keys = self.record.begin(PATH, lengths)
        outputs = [
            NewOutput(PATH, tokens_of(key, n), (n,), np.array([1], np.int32), uuid=key.to_bytes(16))
            for key, n in zip(keys, lengths, strict=True)
        ]
        try:
            ids = self.client.namespace(PATH).add_outputs(outputs)
        except (StoreError, ServiceError) as error:
            self.refuse(keys, error)
        else:
            self.record.acknowledge(keys, ids)

    def write_session(self, rng: Random) -> None:
        length = rng.randrange(4, WIDTH)
        [key] = self.record.begin(PATH, [length], session=True)
        session = self.client.namespace(PATH).open_session([1, 2, 3])
        session.step(tokens_of(key, length).tolist(), max_draft_tokens=4)
        try:
            output_id = session.close()
        except (StoreError, ServiceError) as error:
            self.refused.append(error)
            self.open_closes.append((key, session))
        else:
            self.record.acknowledge([key], [output_id])

    def delete_one(self, rng: Random) -> None:
        moment = self.record.moment()
        keys = sorted(key for key in moment.stored if not self.record.writes[key].deleting)
        key = rng.choice(keys[-60:])
        self.record.begin_deletion([key])
        try:
            self.client.namespace(PATH).delete(output_ids=[self.record.writes[key].output_id])
        except (StoreError, ServiceError) as error:
            self.refused.append(error)
        else:
            self.record.acknowledge_deletion([key])

    def refuse(self, keys: list[int], error: SuffixError) -> None:
        self.refused.append(error)
        if isinstance(error, StoreError):  # "nothing was stored"; other errors leave it open
            self.record.refuse(keys)

    def require_state_told(self) -> None:
        """Assert that a store that fails is reported by every means."""
        info = self.client.server_info()

        def told() -> bool:  # health looks at the store now and then
            if not self.client.stats().store_failing:
                return True  # it has recovered
            return run_verb("health", self.service.address, "--durability").returncode == 1

        eventually(told, "health says that the store fails")
        assert info.store_failure is None or isinstance(info.store_failure, StoreError)
        assert run_verb("health", self.service.address).returncode == 0, "it drafts"

    def recover(self) -> None:
        """Wait until writes succeed, without a restart, and repeat the closes that were refused."""

        def writes() -> bool:
            with suppress(StoreError, ServiceError):
                self.client.namespace("probe").add_output([1, 2, 3])
                return not self.client.stats().store_failing
            return False

        eventually(writes, "the store accepts writes")
        for key, session in self.open_closes:
            self.record.acknowledge([key], [session.close()])  # type: ignore[attr-defined]
        self.open_closes.clear()

        def healthy() -> bool:
            return run_verb("health", self.service.address, "--durability").returncode == 0

        eventually(healthy, "health says that the store works")

    def close(self) -> None:
        self.client.close()


def rows_of(data: Path) -> list[Row]:
    """Check a folder that no process has open; the outputs of the record's namespaces."""
    run = run_verb("check", "--data", data)
    assert run.returncode == 0, run.stdout + run.stderr
    store = LmdbStore(data)
    try:
        store.check()
        return [Row.of(stored) for stored in store.scan(PATH)]
    finally:
        store.close()


@contextmanager
def started(service: ServeProcess, record: WriteRecord) -> Iterator[Disked]:
    """A service that has a known text; at the end it is terminated, checked and compared."""
    service.start()
    disked = Disked(service, record)
    try:
        disked.teach()
        disked.add([WIDTH] * 70)
        yield disked
    finally:
        disked.close()
    assert service.terminate() == 0
    told = service.output()
    assert "unexpected error" not in told, told[-6000:]
    record.compare(rows_of(service.folder / "data"))


@dataclass(frozen=True)
class Fault:
    """What a disk does."""

    name: str
    kinds: Calls
    error: int = errno.EIO
    count: int = 1 << 62
    half: bool = False


FAULTS = (
    Fault("EIO once", Calls.CHANGES, count=1),
    Fault("EIO from then on", Calls.CHANGES),
    Fault("a sync fails once", Calls.SYNC, count=1),
    Fault("disk full from then on", Calls.WRITE | Calls.SIZE | Calls.OPEN | Calls.NAME, errno.ENOSPC),
    Fault("read-only from then on", Calls.CHANGES ^ Calls.SYNC, errno.EROFS),
    Fault("a short write", Calls.WRITE, count=1, half=True),
    Fault("short writes from then on", Calls.WRITE, half=True),
    Fault("a read fails", Calls.READ, count=1),
    Fault("reads fail from then on", Calls.READ),
)


def test_a_fault_at_every_call(tmp_path: Path, full: bool, figure: Callable[..., None]) -> None:
    """The nth call fails, for every n that a round of writes reaches (the short form: some of them)."""
    seed = int(os.environ.get("RELIABILITY_SEED", "1"))
    print(f"RELIABILITY_SEED={seed}")
    rng, record, rounds, refusals = Random(seed), WriteRecord(), Counter[str](), Counter[str]()
    with socket_dir() as folder:
        disk = FaultyDisk(folder / "shim", folder / "data")
        with ServeProcess(folder, constants=CONSTANTS, environ=disk.environ) as service:
            for fault in FAULTS:
                with started(service, record) as disked:
                    disk.count(fault.kinds)
                    disked.write_all_kinds(rng, folder / "data-backup")
                    time.sleep(0.3)  # the seal
                    calls = disk.calls
                    numbers = range(1, calls + 1) if full else sorted(rng.sample(range(1, calls + 1), 4))
                    for number in numbers:
                        disk.fail(
                            fault.kinds, first=number, count=fault.count, error=fault.error, half=fault.half
                        )
                        disked.write_all_kinds(rng, folder / "data-backup")
                        disked.require_state_told()
                        assert disked.drafts(), "drafting goes on"
                        rounds[fault.name] += bool(disk.failed)
                        disk.heal()
                        disked.recover()
                        assert disked.drafts()
                    refusals[fault.name] += len(disked.refused)
                figure(
                    f"{fault.name}: calls of a round, rounds that met it", f"{calls}, {rounds[fault.name]}"
                )
                figure(
                    f"{fault.name}: writes refused",
                    refusals[fault.name],
                    "typed; 0 lost; recovered; check clean",
                )
                assert rounds[fault.name]


# --- a file system without room ----------------------------------------------------------------------------


def fill(disk: Path) -> Path:
    """Use up all room of a file system; the file to remove."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        for size in (1 << 20, 1 << 16, 1 << 12):
            with suppress(OSError):
                while True:
                    os.write(file.fileno(), bytes(size))
    free = os.statvfs(disk)
    assert free.f_bavail * free.f_frsize < 1 << 12
    return ballast


def test_a_full_file_system_that_gets_room_again(figure: Callable[..., None]) -> None:
    """A real one of 24 MiB: full while the service runs, and again full when it starts."""
    rng, record = Random(1), WriteRecord()
    with socket_dir() as folder, small_disk(folder / "data", 24 << 20) as disk:
        with ServeProcess(folder, constants=CONSTANTS) as service:
            with started(service, record) as disked:
                ballast = fill(disk)
                while not disked.client.stats().store_failing:
                    disked.add([WIDTH] * 100)
                disked.write_session(rng)

                def told() -> bool:
                    disked.add([WIDTH] * 100)
                    health = run_verb("health", service.address, "--durability")
                    failure = str(disked.client.server_info().store_failure)
                    return health.returncode == 1 and "full" in health.stdout + failure

                eventually(told, "health says that the disk is full")
                disked.require_state_told()
                assert disked.drafts(), "drafting goes on"
                assert any(isinstance(error, StoreFullError) for error in disked.refused), disked.refused
                ballast.unlink()
                disked.recover()
                disked.add([WIDTH] * 100)
            refusals = len(disked.refused)
            ballast = fill(disk)
            service.start()  # on a full disk
            disked = Disked(service, record)
            assert disked.drafts()
            disked.add([WIDTH])
            assert disked.drafts()
            ballast.unlink()
            disked.recover()
            disked.close()
            assert service.terminate() == 0
        record.compare(rows_of(disk))
    figure("a real disk, full and freed: writes refused", refusals, "state told; drafts; 0 lost; no restart")
    figure("a start on a full disk", "serves, drafts", "writes again after there is room")


def test_a_new_folder_on_a_full_disk() -> None:
    """The reason, in one line, and no signal: LMDB maps a lock file that has no room."""
    with socket_dir() as folder, small_disk(folder / "data", 4 << 20) as disk:
        for free in range(0, 40 << 10, 4 << 10):
            ballast = fill(disk)
            os.truncate(ballast, ballast.stat().st_size - free)
            process = ServeProcess(folder).launch()
            _, told = process.communicate(timeout=300)
            assert process.returncode == 2, told
            assert "full" in told, told
            ballast.unlink()


# --- descriptors -----------------------------------------------------------------------------------------


def test_no_descriptor_is_left(figure: Callable[..., None]) -> None:
    rng, record = Random(2), WriteRecord()
    with (
        socket_dir() as folder,
        ServeProcess(folder, constants=CONSTANTS) as service,
        started(service, record) as disked,
    ):
        assert service.process is not None
        pid = service.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        for spare in (0, 1, 2, 5):
            used = max(int(each) for each in os.listdir(f"/proc/{pid}/fd"))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 1 + spare, hard))
            before = len(disked.refused)
            disked.write_all_kinds(rng, folder / "data-backup")
            assert disked.drafts(), "a connected client drafts"
            impatient = ClientConfig(step_timeout_s=1.0, open_timeout_s=1.0, call_timeout_s=2.0)
            with SuffixClient(service.address, impatient) as late, suppress(SuffixError):
                late.stats()  # a new connection: refused or not, in time
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
            disked.recover()
            with SuffixClient(service.address, CLIENT) as late:
                eventually(lambda late=late: answers(late), "a new client is answered")
            figure(
                f"RLIMIT_NOFILE, {spare} left: writes refused",
                len(disked.refused) - before,
                "drafts; 0 lost",
            )


def answers(client: SuffixClient) -> bool:
    with suppress(ServiceError):
        return bool(client.stats())
    return False


# --- lost pages ------------------------------------------------------------------------------------------


def test_torn_pages(full: bool, figure: Callable[..., None]) -> None:
    """Copies of a data file in which one page is half old: the second half is of another page, or zeros."""
    rng, outcomes = Random(3), Counter[str]()
    with socket_dir() as folder:
        data, record = folder / "data", WriteRecord()
        with ServeProcess(folder) as service, started(service, record) as disked:
            for _ in range(30):
                disked.add([rng.randrange(1, WIDTH) for _ in range(8)])
                disked.delete_one(rng)
        wanted = {row.output_id: row for row in rows_of(data)}
        raw = (data / "data.mdb").read_bytes()
        size = unpack_meta(raw[: META.size]).page_bytes
        used = max(unpack_meta(raw[at : at + META.size]).last_page for at in (0, size)) + 1
        numbers = [*range(used)] if full else [0, 1, *rng.sample(range(2, used), 20)]
        for number in numbers:
            for half in (bytes(size // 2), raw[(number ^ 4) * size :][: size // 2]):
                at = number * size + size // 2
                torn = raw[:at] + half + raw[at + size // 2 :]
                if torn != raw:
                    outcomes[outcome_of(folder / "torn", torn, wanted)] += 1
    for outcome, times in sorted(outcomes.items()):
        figure(f"a torn page: {outcome}", times, "nothing invented")
    assert outcomes.total() >= len(numbers) // 2


def outcome_of(folder: Path, torn: bytes, wanted: dict[int, Row]) -> str:
    """What becomes of a damaged data file: it has the same content, or it is refused, and then repaired."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "data.mdb").write_bytes(torn)
    found = check_folder(folder)
    if not found:
        assert {row.output_id: row for row in rows_of(folder)} == wanted, "damage that a check does not find"
        return "of a free page, or unused: content equal"
    refusal: StoreError | None = None
    try:
        store = LmdbStore(folder)
    except StoreError as error:
        refusal = error
        outcome = "refused with the remedy, repaired"
    else:
        outcome = "opens, damaged records are refused, repaired"
        try:
            for output_id, row in wanted.items():
                with suppress(StoreCorruptError):
                    assert Row.of(store.get(output_id)) == row, "a damaged row is served"
        finally:
            store.close()
        (folder / "data.mdb").write_bytes(torn)
    if refusal is not None:
        assert isinstance(refusal, StoreCorruptError), refusal
        assert refusal.remedy, refusal
    repair_folder(folder)
    assert check_folder(folder) == []
    store = LmdbStore(folder)
    try:
        for stored in store.scan():
            if stored.output.namespace == PATH:
                assert Row.of(stored) == wanted[stored.output_id], "a repair invents"
    finally:
        store.close()
    return outcome


def test_a_segment_loses_its_pages(figure: Callable[..., None]) -> None:
    """Truncated under the service, which reads it through a map: SIGBUS is handled, and it is built again."""
    record = WriteRecord()
    with (
        socket_dir() as folder,
        ServeProcess(folder, constants=CONSTANTS) as service,
        started(service, record) as disked,
    ):
        segments = folder / "data" / "segments"
        eventually(lambda: list(segments.glob("*.seg")), "a segment is written")
        eventually(lambda: disked.client.stats().segments, "it is mapped")
        [segment] = segments.glob("*.seg")
        os.truncate(segment, 0)
        text = tokens_of(1, WIDTH).tolist()  # in it: a page is lost for those who read it
        disked.drafts(PATH, text)
        assert disked.drafts(), "drafting goes on in other namespaces"
        eventually(lambda: disked.drafts(PATH, text), "it is drafted from the log")
        assert not service.process_ended

        def built() -> bool:
            with suppress(FileNotFoundError):
                return any(each.stat().st_size for each in segments.glob("*.seg"))
            return False

        eventually(built, "it is built again")
        assert disked.drafts(PATH, text)
    figure("segments truncated under the service", "survives, built again", "drafts; 0 lost")


def test_the_data_file_loses_its_pages(figure: Callable[..., None]) -> None:
    """LMDB reads through a map: the process ends with SIGBUS and says so, and the next start is refused."""
    record = WriteRecord()
    with socket_dir() as folder, ServeProcess(folder, from_shell=True) as service:
        service.start()
        disked = Disked(service, record)
        disked.teach()
        disked.add([WIDTH] * 60)
        saved = (folder / "data" / "data.mdb").read_bytes()
        os.truncate(folder / "data" / "data.mdb", 8192)
        for _ in range(20):
            disked.add([WIDTH] * 10)
            if service.process_ended:
                break
        disked.close()
        assert service.process is not None
        eventually(lambda: service.process_ended, "it ends")
        told = service.output()
        assert service.process.wait() == -signal.SIGBUS, told
        print(told[-3000:])
        service.process.stderr.close()
        process = service.launch()
        _, told = process.communicate(timeout=300)
        assert process.returncode == 2
        assert "truncated" in told
        (folder / "data" / "data.mdb").write_bytes(saved)  # a disk that comes back
        with suppress(FileNotFoundError):
            (folder / "data" / "meta.journal").unlink()
        service.start()
        assert service.terminate() == 0
        record.compare(rows_of(folder / "data"))
    figure("the data file truncated under the service", "ends with SIGBUS, told", "refused at the next start")

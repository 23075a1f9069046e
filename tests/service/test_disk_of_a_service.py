"""A service whose disk refuses writes, and one without descriptors: typed errors, and what goes on."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from suffixsvc import SuffixCache
from suffixsvc.engine.repair.inspection import check_folder
from suffixsvc.errors import StoreError
from suffixsvc.lookup_records import RecordFile
from suffixsvc.v1 import suffix_cache_pb2_grpc, watch_pb2
from suffixsvc_client import ClientConfig, SuffixClient
from suffixsvc_client.transport.interface import error_from_rpc
from support.faulty_disk import Calls, FaultyDisk
from support.serving import PATIENCE_S, ServeProcess, eventually, socket_dir

CONFIG = ClientConfig(step_timeout_s=300, open_timeout_s=300, call_timeout_s=300)
TEXT = list(range(100, 160))
#: more than any of the calls opens
MOST_SPARE = 12


def test_sessions_that_store_nothing_close_on_a_disk_that_refuses_writes() -> None:
    """Regression: LMDB refuses to read after a failed write of a meta page, until the file is open again, and
    the close of a private session read the log. The store's error grew with every call that it refused."""
    with socket_dir() as folder:
        disk = FaultyDisk(folder / "shim", folder / "data")
        with ServeProcess(folder, environ=disk.environ).start() as service:
            with SuffixClient(service.address, CONFIG) as client:
                client.namespace("a").add_output(TEXT)
                unreadable = 0
                for number in range(1, 9):  # one of them is the meta page's
                    eventually(lambda: stores(client), "the store accepts writes")
                    disk.fail(Calls.CHANGES ^ Calls.SYNC, first=number, error=errno.EROFS)
                    refusals = [refusal(lambda: client.namespace("b").add_output([1])) for _ in range(3)]
                    refused = [str(each) for each in refusals if each is not None]
                    assert all(each.count("of this call were stored") == 1 for each in refused), refused
                    session = client.namespace("a").open_session(TEXT[:30], private=True)
                    assert session.step([TEXT[30]]).token_ids[:4].tolist() == TEXT[31:35]
                    assert session.close() is None
                    unread = refusal(lambda: client.namespace("a").delete(output_ids=[1]))
                    unreadable += "MDB_PANIC" in str(unread)
                    disk.heal()
                assert unreadable, "no read failed"
            assert service.terminate() == 0


def stores(client: SuffixClient) -> bool:
    with contextlib.suppress(StoreError):
        client.namespace("b").add_output([1])
        return not client.stats().store_failing
    return False


def refusal(call: Callable[[], object]) -> StoreError | None:
    try:
        call()
    except StoreError as error:
        return error
    return None


@pytest.fixture(scope="module")
def sealed() -> Iterator[tuple[ServeProcess, str]]:
    """A service that has not been asked for anything, and the name of its segment."""
    with socket_dir() as folder:
        with SuffixCache(folder / "data") as cache:
            cache.namespace("a").add_output(TEXT)
            cache.compact()
        with ServeProcess(folder).start() as service:
            [segment] = (folder / "data" / "segments").iterdir()
            yield service, segment.name
            assert service.terminate() == 0
            assert "defect" not in service.output()


@contextlib.contextmanager
def spare_descriptors(service: ServeProcess, number: int) -> Iterator[None]:
    """Leave a process as many descriptors as ``number``."""
    assert service.process is not None
    pid = service.process.pid
    used = {int(each) for each in os.listdir(f"/proc/{pid}/fd")}
    free = [each for each in range(max(used) + MOST_SPARE + 2) if each not in used]
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free[number], limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("what", ["a backup", "an export", "a segment"])
def test_calls_that_open_files_without_descriptors(what: str, sealed: tuple[ServeProcess, str]) -> None:
    """Regression: "internal error of the service". The first backup loaded its modules."""
    service, segment = sealed
    refused: list[StoreError] = []
    with SuffixClient(service.address, CONFIG) as client, grpc.insecure_channel(service.address) as channel:
        stub = suffix_cache_pb2_grpc.SuffixCacheStub(channel)
        grpc.channel_ready_future(channel).result(PATIENCE_S)
        client.stats()  # connected
        backup: Path = service.folder / "backup"

        def call() -> None:
            if what == "a backup":
                client.backup(backup)
                assert check_folder(backup) == []
                shutil.rmtree(backup)
            elif what == "an export":
                sink = io.BytesIO()
                client.namespace("a").export_ngrams([RecordFile(2)], [sink])
                assert sink.getvalue()
            else:
                request = watch_pb2.FetchSegmentRequest(namespace="a", name=segment)
                try:
                    assert b"".join(each.data for each in stub.FetchSegment(request, timeout=PATIENCE_S))
                except grpc.RpcError as error:
                    raise error_from_rpc(error) from None

        for spare in range(MOST_SPARE):
            with spare_descriptors(service, spare):
                error = refusal(call)
            if error is None:
                break
            assert "no descriptor is left" in str(error), error
            assert error.remedy is not None
            assert "limit" in error.remedy
            assert not backup.exists()
            refused.append(error)
        else:
            pytest.fail(f"refused with {MOST_SPARE} descriptors: {refused[-1]}")
        assert refused, "never without descriptors"
        assert not list(service.folder.glob(".*.partial")), "an unfinished backup remains"

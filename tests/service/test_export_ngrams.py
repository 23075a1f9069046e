"""Exporting n-grams: the same bytes from the engine, through a real service, and from a fake of it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc import SuffixCache
from suffixsvc.core.ngram_count import combine_runs, tally_files
from suffixsvc.engine import ExportJob, export
from suffixsvc.errors import (
    InvalidInputError,
    LimitExceededError,
    ServiceUnavailableError,
    TokenizerMismatchError,
    UnknownNamespaceError,
)
from suffixsvc.lookup_records import RecordFile
from suffixsvc.service.exports import MAX_EXPORTS
from suffixsvc.types import NewOutput
from suffixsvc.v1 import suffix_cache_pb2_grpc
from suffixsvc_caches.lookup.files import read_lookup
from suffixsvc_client import AsyncSuffixClient, SuffixClient
from suffixsvc_client.protocol.bulk import export_request
from suffixsvc_client.testing import FakeTransport
from support.long_form import rounds
from support.lookup_tables import records_of_table, table_of
from support.serving import PATIENCE_S, eventually, serving, socket_dir

#: folders of exports
TEMPORARY = "suffixsvc-export-*"
ALL_ORDERS = [RecordFile(order) for order in (1, 2, 3, 4)]


def counted(texts: list[tuple[list[int], int]], orders: range) -> dict[tuple[int, ...], dict[int, int]]:
    """Followers of every n-gram, counted token by token; a text begins with some tokens of context."""
    found: dict[tuple[int, ...], Counter[int]] = {}
    for text, context in texts:
        for at in range(max(1, context), len(text)):
            for order in orders:
                if order <= at:
                    found.setdefault(tuple(text[at - order : at]), Counter())[text[at]] += 1
    return {ngram: dict(after) for ngram, after in found.items()}


def exported(namespace: Any, wanted: list[RecordFile], **more: Any) -> tuple[Any, list[bytes]]:
    sinks = [io.BytesIO() for _ in wanted]
    summary = namespace.export_ngrams(wanted, sinks, **more)
    return summary, [sink.getvalue() for sink in sinks]


def as_tables(folder: Path, files: list[bytes]) -> dict[tuple[int, ...], dict[int, int]]:
    found: dict[tuple[int, ...], dict[int, int]] = {}
    for i, data in enumerate(files):
        (folder / f"{i}.bin").write_bytes(data)
        found |= records_of_table(read_lookup(folder / f"{i}.bin"))
    return found


@pytest.fixture
def cache() -> Iterator[SuffixCache]:
    with SuffixCache() as cache:
        agent = cache.namespace("acme/sql", tokenizer="xxh3:0123456789abcdef")
        for i in range(50):
            agent.add_output([1, 2, 3, i % 7, 4, 5], prompt_token_ids=[90, 91, 92])
        yield cache


@settings(max_examples=rounds(10, full=40), deadline=None)
@given(
    outputs=st.lists(
        st.tuples(
            st.lists(st.integers(0, 3), min_size=1, max_size=12), st.lists(st.integers(0, 3), max_size=6)
        ),
        min_size=1,
        max_size=8,
    ),
    context=st.integers(0, 4),
)
def test_the_engine_counts_stored_outputs(
    tmp_path_factory: pytest.TempPathFactory, outputs: list[tuple[list[int], list[int]]], context: int
) -> None:
    with SuffixCache() as cache:
        agent = cache.namespace("a")
        for tokens, prompt in outputs:
            agent.add_output(tokens, prompt_token_ids=prompt)
        folder = tmp_path_factory.mktemp("records")
        done = agent.export_ngrams(ALL_ORDERS, folder, context_tokens=context)
        found = as_tables(folder, [file.path.read_bytes() for file in done.files])
    tails = [(prompt[len(prompt) - min(context, len(prompt)) :], tokens) for tokens, prompt in outputs]
    assert found == counted([(tail + tokens, len(tail)) for tail, tokens in tails], range(1, 5))
    assert done.outputs == len(outputs)
    assert done.tokens == sum(len(tokens) for tokens, _ in outputs)


def test_ngrams_do_not_span_runs_of_an_output(tmp_path: Path) -> None:
    with SuffixCache() as cache:
        agent = cache.namespace("a")
        agent.add_outputs([NewOutput("a", np.array([1, 2, 3, 4], np.int32), (2, 2), np.empty(0, np.int32))])
        done = agent.export_ngrams([RecordFile(1)], tmp_path)
        assert records_of_table(read_lookup(done.files[0].path)) == {(1,): {2: 1}, (3,): {4: 1}}


def test_a_service_sends_the_same_bytes(cache: SuffixCache, tmp_path: Path) -> None:
    wanted = [RecordFile(2, max_count=4000, least=2, percent=50, unique=True), *ALL_ORDERS]
    done = cache.namespace("acme/sql").export_ngrams(wanted, tmp_path, context_tokens=2)
    own = [file.path.read_bytes() for file in done.files]

    async def ask(target: str) -> tuple[Any, list[bytes]]:
        async with AsyncSuffixClient(target) as client:
            sinks = [io.BytesIO() for _ in wanted]
            summary = await client.namespace("acme/sql").export_ngrams(wanted, sinks, context_tokens=2)
            return summary, [sink.getvalue() for sink in sinks]

    with socket_dir() as folder, serving(cache, f"unix:{folder}/s.sock") as (_, target):
        with SuffixClient(target) as client:
            summary, files = exported(client.namespace("acme/sql"), wanted, context_tokens=2)
        assert asyncio.run(ask(target)) == (summary, files)
    with SuffixClient(transport=FakeTransport(cache)) as fake:
        assert exported(fake.namespace("acme/sql"), wanted, context_tokens=2) == (summary, files)
    assert files == own
    assert (summary.tokenizer, summary.outputs, summary.tokens) == ("xxh3:0123456789abcdef", 50, 300)
    assert [each.size_bytes for each in summary.files] == [len(each) for each in files]


def test_a_large_file_is_sent_in_pieces(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    with SuffixCache() as cache:
        cache.namespace("a").add_output(rng.integers(0, 1 << 20, 60_000).astype(np.int32))
        with SuffixClient(transport=FakeTransport(cache)) as client:
            summary, [data] = exported(client.namespace("a"), [RecordFile(4)])
    assert len(data) == summary.files[0].size_bytes > 1 << 20
    (tmp_path / "f").write_bytes(data)
    assert len(read_lookup(tmp_path / "f")) == summary.files[0].records == 60_000 - 4


def test_refusals(cache: SuffixCache) -> None:
    with (
        socket_dir() as folder,
        serving(cache, f"unix:{folder}/s.sock") as (_, target),
        SuffixClient(target) as client,
    ):
        with pytest.raises(UnknownNamespaceError):
            exported(client.namespace("absent"), ALL_ORDERS)
        with pytest.raises(TokenizerMismatchError):
            exported(client.namespace("acme/sql", "xxh3:ffffffffffffffff"), ALL_ORDERS)
        for wrong in (
            [],
            [RecordFile(0)],
            [RecordFile(17, slots=17)],
            [RecordFile(4, slots=3)],
            [RecordFile(4, slots=4, totals=True)],
            [RecordFile(2, slots=1 << 20)],
            [RecordFile(2, percent=101)],
            [RecordFile(2, max_count=1 << 31)],
            [RecordFile(-1)],
            [RecordFile(1)] * 65,  # thousands took every file that the service may open
        ):
            with pytest.raises(InvalidInputError):
                exported(client.namespace("acme/sql"), wrong)
        with pytest.raises(InvalidInputError):
            exported(client.namespace("acme/sql"), ALL_ORDERS, context_tokens=65)
        assert exported(client.namespace("acme/sql"), ALL_ORDERS)[0].outputs == 50  # and it still answers


@pytest.mark.parametrize("cut", [{"min_count": -1}, {"top": -1}, {"least": 1 << 32}, {"min_count": 1 << 64}])
def test_the_engine_refuses_invalid_cuts(cut: dict[str, int], cache: SuffixCache, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError):
        cache.namespace("acme/sql").export_ngrams([RecordFile(2, **cut)], tmp_path)


class Gate:
    """Blocks callers until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Semaphore(0), threading.Event()

    def pass_through(self) -> None:
        self.reached.release()
        assert self.opened.wait(PATIENCE_S)

    def wait_for(self, number: int) -> None:
        for _ in range(number):
            assert self.reached.acquire(timeout=PATIENCE_S)


class StalledSink(io.BytesIO):
    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    def write(self, data: Any) -> int:
        self._gate.pass_through()
        return super().write(data)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of unfinished exports."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_one_export_counts_at_a_time(
    cache: SuffixCache, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()

    def slow(*args: Any, **more: Any) -> Any:
        gate.pass_through()
        return tally_files(*args, **more)

    monkeypatch.setattr("suffixsvc.engine.export.tally_files", slow)
    with SuffixClient(transport=FakeTransport(cache)) as client, ThreadPoolExecutor() as pool:
        namespace = client.namespace("acme/sql")
        first = pool.submit(exported, namespace, ALL_ORDERS)
        gate.wait_for(1)
        with pytest.raises(LimitExceededError, match="another export is counting"):
            exported(namespace, ALL_ORDERS)
        gate.opened.set()
        assert first.result(PATIENCE_S) == exported(namespace, ALL_ORDERS)
    assert not list(scratch.glob(TEMPORARY))


def test_clients_that_stall_do_not_block_others(cache: SuffixCache, scratch: Path) -> None:
    """What happened: they held the only permit. Now one export counts, and several may be read."""
    gate = Gate()
    with SuffixClient(transport=FakeTransport(cache)) as client, ThreadPoolExecutor() as pool:
        namespace = client.namespace("acme/sql")

        def stall() -> Any:
            stalled = pool.submit(namespace.export_ngrams, [RecordFile(1)], [StalledSink(gate)])
            gate.wait_for(1)
            return stalled

        stalled = [stall() for _ in range(MAX_EXPORTS - 1)]
        assert exported(namespace, ALL_ORDERS)[0].outputs == 50
        stalled.append(stall())
        assert not list(scratch.glob(TEMPORARY))  # files that are being read are unlinked
        with pytest.raises(LimitExceededError, match="being read"):
            exported(namespace, ALL_ORDERS)
        gate.opened.set()
        assert [each.result(PATIENCE_S).outputs for each in stalled] == [50] * MAX_EXPORTS
        assert exported(namespace, ALL_ORDERS)[0].outputs == 50


@contextlib.contextmanager
def calling(folder: Path) -> Iterator[tuple[Any, str]]:
    """Calls of gRPC, whether their replies are read or not; they outlive the service."""
    address = f"unix:{folder}/s.sock"
    with grpc.insecure_channel(address) as channel:
        yield suffix_cache_pb2_grpc.SuffixCacheStub(channel), address


@pytest.mark.parametrize("end", ["client disconnected", "deadline", "server stopped"])
def test_a_stalled_export_leaves_no_files(end: str, scratch: Path) -> None:
    rng = np.random.default_rng(7)
    with SuffixCache() as cache, socket_dir() as folder, calling(folder) as (stub, address):
        # Far more than gRPC buffers for a client that does not read.
        cache.namespace("a").add_output(rng.integers(0, 1 << 20, 200_000).astype(np.int32))
        request = export_request("a", None, ALL_ORDERS, 0)
        with serving(cache, address):
            call = stub.ExportNgrams(request, timeout=5 if end == "deadline" else None)
            assert next(call).summary.outputs == 1
            with SuffixClient(address) as other:
                assert exported(other.namespace("a"), [RecordFile(1)])[0].outputs == 1
            assert not list(scratch.glob(TEMPORARY))
            assert unnamed(scratch)
            if end == "client disconnected":
                call.cancel()
            if end != "server stopped":
                eventually(lambda: not unnamed(scratch), "the files are closed")
        eventually(lambda: not unnamed(scratch), "the files are closed")


def test_stalled_exports_are_cancelled(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What happened: four of them, without deadlines, blocked all other exports without a limit."""
    monkeypatch.setattr("suffixsvc.service.servicer.STALLED_SECONDS", 1.0)
    rng = np.random.default_rng(7)
    gate = Gate()
    with (
        SuffixCache() as cache,
        socket_dir() as folder,
        serving(cache, f"unix:{folder}/s.sock") as (_, target),
    ):
        cache.namespace("large").add_output(rng.integers(0, 1 << 20, 200_000).astype(np.int32))
        cache.namespace("small").add_output([1, 2, 3])
        with SuffixClient(target) as client, ThreadPoolExecutor() as pool:
            stalled = []
            for _ in range(MAX_EXPORTS):
                sinks = [StalledSink(gate) for _ in ALL_ORDERS]
                stalled.append(pool.submit(client.namespace("large").export_ngrams, ALL_ORDERS, sinks))
                gate.wait_for(1)

            def is_admitted() -> bool:
                with contextlib.suppress(LimitExceededError):
                    return exported(client.namespace("small"), [RecordFile(1)])[0].tokens == 3
                return False

            try:
                eventually(is_admitted, "an export is admitted")
                eventually(lambda: not unnamed(scratch), "the files are closed")
            finally:
                gate.opened.set()
            # How much gRPC buffers for a reader grows with the load: an export may have been sent whole.
            for each in stalled:
                error = each.exception(PATIENCE_S)
                assert error is None or isinstance(error, ServiceUnavailableError)
                assert each.result().outputs == 1 if error is None else "the call was cancelled" in str(error)


def unnamed(folder: Path) -> list[str]:
    """Files of a folder that are open in this process and have no name."""
    links: list[str] = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed in the meantime
            links.append(os.readlink(link))
    return [link for link in links if fnmatch(link, f"{folder}/{TEMPORARY}")]


def endless(work: Callable[..., Any], begun: Callable[[], object]) -> Callable[..., Any]:
    """Merging that lasts until it is cancelled."""

    def merge(*args: Any, **more: Any) -> None:
        begun()
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            work(*args, **more)
        raise AssertionError("not cancelled")

    return merge


@pytest.mark.parametrize("during", ["counting", "combine_runs", "tally_files"])
def test_a_cancelled_export_ends(
    during: str, cache: SuffixCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merging, most of the work, went on to its end."""
    job = ExportJob()
    if during == "counting":
        job.cancel()
    else:
        work = {"combine_runs": combine_runs, "tally_files": tally_files}[during]
        monkeypatch.setattr(export, during, endless(work, job.cancel))
        monkeypatch.setattr(export, "_FAN_IN", 1)
    with pytest.raises(ServiceUnavailableError, match="cancelled"):
        cache.namespace("acme/sql").export_ngrams(ALL_ORDERS, tmp_path, job=job)


@pytest.mark.parametrize("end", ["client disconnected", "server stopped"])
def test_a_service_stops_counting_without_a_client(
    end: str, cache: SuffixCache, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()
    monkeypatch.setattr(export, "tally_files", endless(tally_files, begun.set))
    with ThreadPoolExecutor() as pool, socket_dir() as folder, calling(folder) as (stub, address):
        with serving(cache, address):
            call = stub.ExportNgrams(export_request("acme/sql", None, ALL_ORDERS, 0))
            told = pool.submit(call.code)
            assert begun.wait(PATIENCE_S)
            assert list(scratch.glob(TEMPORARY))
            if end == "client disconnected":
                call.cancel()
                eventually(lambda: not list(scratch.glob(TEMPORARY)), "the folder is removed")
        eventually(lambda: not list(scratch.glob(TEMPORARY)), "the folder is removed")
        stopped = {
            "client disconnected": grpc.StatusCode.CANCELLED,
            "server stopped": grpc.StatusCode.UNAVAILABLE,
        }
        assert told.result(PATIENCE_S) == stopped[end]


def test_an_empty_namespace_exports_empty_files(tmp_path: Path) -> None:
    with SuffixCache() as cache:
        done = cache.namespace("a").export_ngrams(ALL_ORDERS, tmp_path)
        assert (done.outputs, [file.path.read_bytes() for file in done.files]) == (0, [b""] * 4)
        assert as_tables(tmp_path, [b""]) == records_of_table(table_of({}))

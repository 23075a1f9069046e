"""Exporting n-grams: the same bytes from the engine, through a real service, and from a fake of it."""

from __future__ import annotations

import asyncio
import io
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suffixsvc_caches.lookup import LookupTable, read_lookup
from suffixsvc_client import AsyncSuffixClient, SuffixClient
from suffixsvc_client.testing import FakeTransport
from support.serving import serving, socket_dir

from suffixsvc import SuffixCache
from suffixsvc.errors import (
    InvalidInputError,
    LimitExceededError,
    ServiceUnavailableError,
    TokenizerMismatchError,
    UnknownNamespaceError,
)
from suffixsvc.types import NewOutput, RecordFile

ALL_ORDERS = [RecordFile(order) for order in (1, 2, 3, 4)]


def counted(texts: list[tuple[list[int], int]], orders: range) -> dict[tuple[int, ...], dict[int, int]]:
    """What followed every n-gram, counted token by token; of each text, so many tokens are context."""
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
        found |= read_lookup(folder / f"{i}.bin").as_dict()
    return found


@pytest.fixture
def cache() -> Iterator[SuffixCache]:
    with SuffixCache() as cache:
        agent = cache.namespace("acme/sql", tokenizer="xxh3:0123456789abcdef")
        for i in range(50):
            agent.add_output([1, 2, 3, i % 7, 4, 5], prompt_token_ids=[90, 91, 92])
        yield cache


@settings(max_examples=40, deadline=None)
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
def test_the_engine_counts_what_it_keeps(
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


def test_runs_of_an_output_are_no_neighbours(tmp_path: Path) -> None:
    with SuffixCache() as cache:
        agent = cache.namespace("a")
        agent.add_outputs([NewOutput("a", np.array([1, 2, 3, 4], np.int32), (2, 2), np.empty(0, np.int32))])
        done = agent.export_ngrams([RecordFile(1)], tmp_path)
        assert read_lookup(done.files[0].path).as_dict() == {(1,): {2: 1}, (3,): {4: 1}}


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


def test_a_large_file_comes_in_pieces(tmp_path: Path) -> None:
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
            exported(client.namespace("nobody"), ALL_ORDERS)
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
def test_the_engine_refuses_cuts_that_are_none(
    cut: dict[str, int], cache: SuffixCache, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError):
        cache.namespace("acme/sql").export_ngrams([RecordFile(2, **cut)], tmp_path)


def test_one_export_at_a_time(cache: SuffixCache) -> None:
    transport = FakeTransport(cache)
    inside, go_on = threading.Event(), threading.Event()

    class Slow(io.BytesIO):
        def write(self, data: Any) -> int:
            inside.set()
            assert go_on.wait(30)
            return super().write(data)

    with SuffixClient(transport=transport) as client:
        namespace = client.namespace("acme/sql")
        first = threading.Thread(target=namespace.export_ngrams, args=([RecordFile(1)], [Slow()]))
        first.start()
        assert inside.wait(30)
        with pytest.raises(LimitExceededError, match="another export"):
            exported(namespace, ALL_ORDERS)
        go_on.set()
        first.join()
        assert exported(namespace, ALL_ORDERS)[0].outputs == 50


def test_a_cancelled_export_ends(cache: SuffixCache, tmp_path: Path) -> None:
    with pytest.raises(ServiceUnavailableError, match="cancelled"):
        cache.namespace("acme/sql").export_ngrams(ALL_ORDERS, tmp_path, cancelled=lambda: True)


def test_an_empty_namespace_exports_empty_files(tmp_path: Path) -> None:
    with SuffixCache() as cache:
        done = cache.namespace("a").export_ngrams(ALL_ORDERS, tmp_path)
        assert (done.outputs, [file.path.read_bytes() for file in done.files]) == (0, [b""] * 4)
        assert as_tables(tmp_path, [b""]) == LookupTable.of({}).as_dict()

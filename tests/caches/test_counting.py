"""Counting of logs: the records do not depend on workers, memory or checkpoints."""

from __future__ import annotations

import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from suffixsvc.core.ngram_count import NgramCounter, SegmentJob, combine_runs
from suffixsvc.errors import (
    InvalidConfigError,
    InvalidInputError,
    InvalidTokensError,
    SegmentCancelledError,
    StoreError,
    StoreFullError,
    TokenizerMismatchError,
)
from suffixsvc_caches.building.lookup_caches import LookupSpec
from suffixsvc_caches.building.run import BuildObserver, build
from suffixsvc_caches.building.spec import BuildSpec
from suffixsvc_caches.counting import merging
from suffixsvc_caches.counting.digest_set import DigestSet
from suffixsvc_caches.counting.journal import Journal
from suffixsvc_caches.counting.local import count_logs
from suffixsvc_caches.manifest import read_manifest
from suffixsvc_client.text import TextCodec
from support.build_logs import (
    Call,
    count_all,
    plan_of,
    records_by_hand,
    records_of,
    synthetic_calls,
    texts_of,
    unique,
    write_log,
)
from support.ngram_oracle import parse
from support.small_disk import files_up_to, small_disk

OTHER = "xxh3:fedcba9876543210"


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suffixsvc_caches.counting.batches.BATCH_CALLS", 7)
    monkeypatch.setattr("suffixsvc_caches.counting.batches.BATCH_SIZE", 150)


def little_memory(monkeypatch: pytest.MonkeyPatch, each: int = 200 << 10) -> None:
    """Limit memory so that runs are spilled often and merged a few at a time."""
    monkeypatch.setattr(
        "suffixsvc_caches.counting.local.counter_bytes", lambda options, encodes: each * options.workers
    )
    monkeypatch.setattr("suffixsvc_caches.counting.merging.FAN_IN", 3)


@pytest.fixture
def calls() -> list[Call]:
    return synthetic_calls(1, 400)


@pytest.fixture
def logs(calls: list[Call], tmp_path: Path) -> list[Path]:
    """Three logs, one of them empty."""
    return [
        write_log(tmp_path / "logs" / "a.jsonl", calls[:150]),
        write_log(tmp_path / "logs" / "b.jsonl", []),
        write_log(tmp_path / "logs" / "c.jsonl", calls[150:]),
    ]


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("dedupe", [False, True], ids=["all", "dedupe"])
def test_the_bytes_do_not_depend_on_workers_and_memory(
    dedupe: bool, logs: list[Path], calls: list[Call], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = unique(calls) if dedupe else calls
    orders = {}
    for i, (workers, memory, seconds) in enumerate(
        [(1, 0, 60.0), (1, 150 << 10, 0.0), (2, 0, 0.0), (2, 150 << 10, 60.0), (5, 150 << 10, 0.0)]
    ):
        with monkeypatch.context() as patch:
            if memory:
                little_memory(patch, memory)
            plan = plan_of(
                logs, workers=workers, highest=3, dedupe=dedupe, checkpoint_seconds=seconds,
                memory_bytes=1 << 30,
            )  # fmt: skip
            counted, records = count_all(plan, tmp_path / f"work{i}")
        assert counted.tokens == sum(len(call.response) for call in expected)
        assert counted.calls == len(expected)
        assert counted.duplicates == len(calls) - len(expected)
        assert counted.report.counts.calls == len(calls)
        orders[i] = records
    assert all(records == orders[0] for records in orders.values())
    for order, raw in orders[0].items():
        assert parse(raw, order, order) == records_by_hand(texts_of(expected), order)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("context", [1, 2, 3, 9, 100_000])
def test_ngrams_begin_in_the_context(
    context: int, logs: list[Path], calls: list[Call], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More context than the longest n-gram changes nothing; a very long one was refused."""
    little_memory(monkeypatch)
    counted, records = count_all(plan_of(logs, highest=3, context_tokens=context), tmp_path / "work")
    assert counted.tokens == sum(len(call.response) for call in calls)
    for order, raw in records.items():
        assert parse(raw, order, order) == records_by_hand(texts_of(calls, context), order)


@pytest.mark.parametrize("context", [0, 2, 50])
def test_a_long_text_is_divided_without_loss_of_ngrams(
    context: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suffixsvc_caches.counting.worker._PIECE", 20)
    random = Random(7)
    calls = [
        Call([random.randrange(4) for _ in range(n)], [random.randrange(4) for _ in range(50)])
        for n in (1, 19, 20, 21, 40, 1000, 3)
    ]
    plan = plan_of([write_log(tmp_path / "a.jsonl", calls)], highest=5, context_tokens=context)
    _, records = count_all(plan, tmp_path / "work")
    for order, raw in records.items():
        assert parse(raw, order, order) == records_by_hand(texts_of(calls, context), order)


def test_a_batch_larger_than_all_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is spilled to several runs, which the journal records together."""
    little_memory(monkeypatch, 90 << 10)
    calls = [Call([Random(i).randrange(9) for _ in range(9000)]) for i in range(8)]
    plan = plan_of([write_log(tmp_path / "a.jsonl", calls)], highest=2)
    journal = Journal(tmp_path / "work", plan.key())
    count_logs(plan, journal)
    assert len(journal.runs()) > 3
    assert parse(records_of(plan, journal)[2], 2, 2) == records_by_hand(texts_of(calls), 2)
    journal.close()


def test_the_digest_set_spills_to_a_file(tmp_path: Path) -> None:
    seen, known = DigestSet(tmp_path / "seen", 0), set[bytes]()
    random = Random(3)
    for _ in range(9000):
        digest = random.randrange(5000).to_bytes(16, "big")
        assert seen.add(digest) == (digest not in known)
        known.add(digest)
    assert (tmp_path / "seen").stat().st_size > 50_000
    (tmp_path / "seen").rename(tmp_path / "killed")
    seen.close()
    (tmp_path / "killed").rename(tmp_path / "seen")
    again = DigestSet(tmp_path / "seen", 0)  # a new run of a killed build starts empty
    assert all(again.add(digest) for digest in sorted(known))
    again.close()


def test_a_full_disk_in_the_digest_set(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 100 << 10) as disk:
        seen = DigestSet(disk / "seen", 0)
        with contextlib.closing(seen), pytest.raises(StoreFullError):
            list(map(seen.add, (i.to_bytes(16, "big") for i in range(20_000))))


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("workers", [1, 2])
def test_counts_are_kept_on_a_full_disk(
    workers: int, logs: list[Path], calls: list[Call], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build stops; after space is freed it resumes and writes the same bytes."""
    little_memory(monkeypatch)
    plan = plan_of(logs, highest=3, workers=workers, checkpoint_seconds=0.0)
    _, undisturbed = count_all(plan, tmp_path / "undisturbed")
    resumed, room = [], 512
    while not resumed or resumed[-1] is None:
        try:
            with files_up_to(room):
                counted, records = count_all(plan, tmp_path / "work")
            resumed.append(counted.resumed_tokens)
        except StoreFullError:
            resumed.append(None)
            assert not list((tmp_path / "work").glob("*.tmp"))
            room = room * 5 // 4
    assert len(resumed) > 3
    assert resumed[-1]
    assert counted.tokens == sum(len(call.response) for call in calls)
    assert records == undisturbed


def word_level() -> TextCodec:
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(12)} | {"?": 12}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return TextCodec(tokenizer)


@pytest.mark.usefixtures("small_batches")
def test_texts_count_as_their_ids(calls: list[Call], tmp_path: Path) -> None:
    """Logs of texts, of ids, and of both."""
    codec = word_level()
    mixed = tmp_path / "mixed.jsonl"
    lines = []
    for i, call in enumerate(calls):
        record = call.record(codec.fingerprint)
        if i % 3:
            text = " ".join(f"w{token}" for token in call.response)
            record = {"prompt": " ".join(f"w{token}" for token in call.prompt), "response": text}
        lines.append(record)
    mixed.write_text("".join(json.dumps(line) + "\n" for line in lines))
    plan = plan_of([mixed], tokenizer=codec, highest=3, context_tokens=2)
    counted, records = count_all(plan, tmp_path / "work")
    assert counted.fingerprint == codec.fingerprint
    for order, raw in records.items():
        assert parse(raw, order, order) == records_by_hand(texts_of(calls, 2), order)


def test_texts_need_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    with pytest.raises(InvalidInputError, match="must have token ids"):
        count_all(plan_of([tmp_path / "a.jsonl"]), tmp_path / "work")


@pytest.mark.parametrize("inside", [True, False], ids=["one log", "two logs"])
def test_ids_of_two_tokenizers_do_not_mix(inside: bool, tmp_path: Path) -> None:
    a, b = (
        write_log(tmp_path / "a.jsonl", [Call([1, 2])]),
        write_log(tmp_path / "b.jsonl", [Call([1])], OTHER),
    )
    if inside:
        a.write_text(a.read_text() + b.read_text())
    with pytest.raises(TokenizerMismatchError, match="ids of the same tokenizer"):
        count_all(plan_of([a] if inside else [a, b]), tmp_path / "work")


def test_the_tokenizer_of_a_resumed_build_is_known(tmp_path: Path) -> None:
    """The log that names the tokenizer has been counted and is not read again."""
    a, b = (
        write_log(tmp_path / "a.jsonl", [Call([1, 2])]),
        write_log(tmp_path / "b.jsonl", [Call([1])], OTHER),
    )
    plan = plan_of([a, b])
    for _ in range(2):
        with pytest.raises(TokenizerMismatchError):
            count_all(plan, tmp_path / "work")


@pytest.mark.parametrize(
    ("call", "what"),
    [(Call([1, 13]), "response 2"), (Call([1], [13]), "prompt 2")],
    ids=["response", "prompt"],
)
def test_ids_beyond_the_vocabulary(call: Call, what: str, tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.jsonl", [Call([1, 2]), call], word_level().fingerprint)
    with pytest.raises(InvalidTokensError, match=rf"a\.jsonl must be in the vocabulary \({what}") as caught:
        count_all(plan_of([log], tokenizer=word_level(), context_tokens=1), tmp_path / "work")
    assert caught.value.expected == "0 .. 12"


def test_too_little_memory_is_refused_before_reading(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.jsonl", [Call([1, 2])])
    with pytest.raises(InvalidConfigError, match="memory must be"):
        plan_of([log], memory_bytes=1 << 20)
    with pytest.raises(InvalidConfigError, match="memory must be") as caught:
        count_all(plan_of([log], memory_bytes=64 << 20, workers=30), tmp_path / "work")
    assert "30 workers" in str(caught.value)


def test_a_log_that_is_still_written_is_named_in_the_manifest(tmp_path: Path) -> None:
    """The bytes hashed at the end are not the counted ones."""
    growing, still = (write_log(tmp_path / f"{name}.jsonl", [Call([1, 2, 3, 4])]) for name in ("a", "b"))

    class Writer(BuildObserver):
        def on_merge_progress(self, share: float) -> None:
            with growing.open("a") as log:
                log.write(json.dumps(Call([5, 6]).record()) + "\n")

    static = LookupSpec(tmp_path / "s.bin")
    build(BuildSpec([growing, still], static=static), Writer())
    manifest = read_manifest(static.path)
    assert manifest is not None
    assert manifest.options["changed_meanwhile"] == ["a.jsonl"]
    build(BuildSpec([growing, still], static=static, force=True))
    again = read_manifest(static.path)
    assert again is not None
    assert "changed_meanwhile" not in again.options


def test_a_merge_that_fails_ends_the_others(tmp_path: Path) -> None:
    """They could run for hours before the error is raised."""
    run = tmp_path / "a.run"
    counter = NgramCounter(2, 2, memory_bytes=1 << 20)
    counter.add(np.arange(9, dtype=np.int32), np.array([9], np.int64), np.array([0], np.int64))
    counter.spill(run)
    ended = threading.Event()

    def goes_on(job: SegmentJob) -> None:
        try:
            while True:
                combine_runs([run], tmp_path / "b.run", job=job)
        except SegmentCancelledError:
            ended.set()

    def fails(job: SegmentJob) -> None:
        combine_runs([tmp_path / "none.run"], tmp_path / "c.run", job=job)

    with pytest.raises(StoreError, match=r"none\.run"), ThreadPoolExecutor(2) as pool:
        list(merging.run_tasks(pool, [goes_on, fails], lambda share: None))
    assert ended.is_set()

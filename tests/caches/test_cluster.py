"""Counting on a local Ray cluster: the same bytes as local counting, and resumption of its builds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from suffixsvc import SuffixCache
from suffixsvc.errors import InvalidTokensError, TokenizerMismatchError
from suffixsvc.lookup_records import RecordFile
from suffixsvc_caches.building.lookup_caches import LookupSpec
from suffixsvc_caches.building.run import build
from suffixsvc_caches.building.spec import BuildSpec, CorpusTarget
from suffixsvc_caches.counting.batches import Batch
from suffixsvc_caches.counting.cluster import count_on_cluster, merge_on_cluster
from suffixsvc_caches.counting.journal import Journal
from suffixsvc_caches.counting.local import count_logs
from suffixsvc_caches.counting.worker import Worker
from suffixsvc_caches.tokenizers.load import TokenizerSource
from support.build_logs import Call, count_all, plan_of, synthetic_calls, write_log
from support.engine_parts import parts_of
from support.tiny_tokenizer import write_tokenizer

ray = pytest.importorskip("ray", reason="Ray is optional: pip install 'suffixsvc[cluster]'")

#: all files in the folder of a finished build
MADE = ["d.bin", "d.bin.manifest.json", "data", "s.bin", "s.bin.manifest.json"]

_ATTEMPTS = 10


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """A cluster for all tests, since its start takes seconds; on a busy machine more than Ray's 30 s."""
    for attempt in range(_ATTEMPTS):
        try:
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
            break
        except Exception as error:  # Ray raises no more specific exception
            ray.shutdown()
            if "timed out" not in str(error) or attempt == _ATTEMPTS - 1:
                raise
    yield
    ray.shutdown()


@pytest.fixture
def calls() -> list[Call]:
    return synthetic_calls(3, 1500)


@pytest.fixture
def logs(calls: list[Call], tmp_path: Path) -> list[Path]:
    parts = (calls[:1200], calls[1200:1300], [], calls[1300:])
    return [write_log(tmp_path / "logs" / f"{i}.jsonl", part) for i, part in enumerate(parts)]


def spec_of(logs: list[Path], folder: Path, engine: str, **more: Any) -> BuildSpec:
    return BuildSpec(
        logs, work=folder / "work", static=LookupSpec(folder / "s.bin"), dynamic=LookupSpec(folder / "d.bin"),
        workers=2, engine=engine, context_tokens=2, **more,
    )  # fmt: skip


@pytest.mark.parametrize("dedupe", [False, True], ids=["all", "dedupe"])
def test_the_same_bytes_and_the_same_corpus(dedupe: bool, logs: list[Path], tmp_path: Path) -> None:
    made = {}
    for engine in ("local", "ray"):
        folder = tmp_path / engine
        folder.mkdir()
        target = CorpusTarget("a", folder / "data")
        done = build(spec_of(logs, folder, engine, dedupe=dedupe, corpus=target))
        with SuffixCache(folder / "data") as cache:
            held = [each.output.token_ids.tolist() for each in parts_of(cache).store.scan("a")]
        made[engine] = (
            (folder / "s.bin").read_bytes(), (folder / "d.bin").read_bytes(), held,
            done.counted.tokens, done.counted.calls, done.counted.duplicates, done.counted.fingerprint,
            done.counted.report.as_dict(),
        )  # fmt: skip
        assert sorted(path.name for path in folder.iterdir()) == MADE
    assert made["ray"] == made["local"]


def test_each_engine_resumes_the_other_s_build(
    logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a log is counted locally, the rest on the cluster, and merged locally."""
    plan = plan_of(logs, highest=2, workers=2, checkpoint_seconds=0.0, dedupe=True)
    counted, expected = count_all(plan, tmp_path / "undisturbed")
    journal = Journal(tmp_path / "work", plan.key())

    count = Worker.count

    def count_and_stop(worker: Worker, batch: Batch) -> int:
        tokens = count(worker, batch)
        if journal.tokens:
            raise KeyboardInterrupt
        return tokens

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "count", count_and_stop)
        with pytest.raises(KeyboardInterrupt):
            count_logs(plan, journal)
    journal.close()
    journal = Journal(tmp_path / "work", plan.key())
    assert 0 < journal.tokens < counted.tokens
    there = count_on_cluster(plan, journal)
    assert (there.tokens, there.calls, there.duplicates) == (
        counted.tokens,
        counted.calls,
        counted.duplicates,
    )
    assert there.resumed_tokens
    found = merge_on_cluster(journal, [RecordFile(n, n) for n in (1, 2)], 3)
    assert [b"".join(part.read_bytes() for part in each.parts) for each in found] == list(expected.values())
    journal.close()
    again, here = count_all(plan, tmp_path / "work")
    assert (again.tokens, again.resumed_tokens, here) == (counted.tokens, counted.tokens, expected)


def test_runs_are_combined_on_the_cluster(
    logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suffixsvc_caches.counting.merging.FAN_IN", 2)
    plan = plan_of(logs, highest=2, workers=2)
    _, expected = count_all(plan, tmp_path / "undisturbed")
    journal = Journal(tmp_path / "work", plan.key())
    count_on_cluster(plan, journal)
    assert len(journal.runs()) > 2
    found = merge_on_cluster(journal, [RecordFile(n, n) for n in (1, 2)], 2)
    assert len(journal.runs()) <= 2
    assert [b"".join(part.read_bytes() for part in each.parts) for each in found] == list(expected.values())
    journal.close()


def test_ids_of_two_tokenizers_do_not_mix(tmp_path: Path) -> None:
    """Each task sees one log only, so that the check must compare the tasks' results."""
    logs = [write_log(tmp_path / f"{name}.jsonl", [Call([1, 2])], f"xxh3:{name * 16}") for name in "ab"]
    plan = plan_of(logs)
    for _ in range(2):
        journal = Journal(tmp_path / "work", plan.key())
        with pytest.raises(TokenizerMismatchError):
            count_on_cluster(plan, journal)
        journal.close()


def test_errors_of_a_task_are_raised_unwrapped(tmp_path: Path) -> None:
    source = TokenizerSource(write_tokenizer(tmp_path / "t.json"))
    tokenizer = source.load()
    log = write_log(tmp_path / "a.jsonl", [Call([1, 2]), Call([259])], tokenizer.fingerprint)
    plan = plan_of([log], tokenizer=tokenizer)
    journal = Journal(tmp_path / "work", plan.key())
    with pytest.raises(InvalidTokensError, match="must be in the vocabulary"):
        count_on_cluster(plan, journal, source=source)
    journal.close()

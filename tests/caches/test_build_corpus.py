"""Loading of corpora into a data folder and into a running service."""

from __future__ import annotations

from pathlib import Path

import pytest

from suffixsvc import SuffixCache
from suffixsvc.errors import (
    InvalidConfigError,
    InvalidInputError,
    ServiceError,
    StoreError,
    StoreLockedError,
    TokenizerMismatchError,
)
from suffixsvc.types import StoredOutput
from suffixsvc_caches.building.lookup_caches import LookupSpec
from suffixsvc_caches.building.run import BuildObserver, build
from suffixsvc_caches.building.spec import BuildSpec, CorpusTarget
from suffixsvc_caches.counting.journal import Journal
from suffixsvc_client import SuffixClient
from support.build_logs import FINGERPRINT, Call, synthetic_calls, write_log
from support.engine_parts import parts_of
from support.serving import serving, socket_dir
from support.small_disk import files_up_to

NS = "acme/logs"


@pytest.fixture
def calls() -> list[Call]:
    """Calls with equal responses, each of which is an output, and one longer than a batch."""
    return [*synthetic_calls(5, 120), Call(list(range(50)) * 40, [9] * 100, "a" * 300), Call([7, 8])]


@pytest.fixture
def log(calls: list[Call], tmp_path: Path) -> Path:
    return write_log(tmp_path / "log.jsonl", calls)


def spec_of(log: Path, tmp_path: Path, target: CorpusTarget, **more: object) -> BuildSpec:
    return BuildSpec([log], work=tmp_path / "work", corpus=target, **more)  # type: ignore[arg-type] # by name


def held(cache: SuffixCache) -> list[StoredOutput]:
    return list(parts_of(cache).store.scan(NS))


def as_calls(outputs: list[StoredOutput]) -> list[Call]:
    return [
        Call(
            each.output.token_ids.tolist(),
            each.output.prompt_tail.tolist(),
            each.output.labels.get("agent", ""),
        )
        for each in outputs
    ]


def expected(calls: list[Call]) -> list[Call]:
    return [Call(call.response, call.prompt[-64:], call.agent[:256]) for call in calls]


def test_a_data_folder_opens_at_once_and_drafts(log: Path, calls: list[Call], tmp_path: Path) -> None:
    result = build(spec_of(log, tmp_path, CorpusTarget(NS, tmp_path / "data")))
    assert result.corpus_outputs == len(calls)
    with SuffixCache(tmp_path / "data") as cache:
        cache.check()
        assert (cache.stats().hot_tokens, cache.namespace(NS, tokenizer=FINGERPRINT).stats().segments) == (
            0,
            1,
        )
        outputs = held(cache)
        assert as_calls(outputs) == expected(calls)
        assert all(each.output.corpus for each in outputs)
        session = cache.namespace(NS).open_session([1])
        draft = session.step([40, 41, 42, 43])
        assert draft.token_ids.tolist() == [(44 + i) % 50 for i in range(len(draft))]
        assert len(draft) >= 3
        with pytest.raises(TokenizerMismatchError):
            cache.namespace(NS, tokenizer="xxh3:fedcba9876543210")
    assert not (tmp_path / "work").exists()


def test_a_very_long_text_becomes_outputs_that_follow_each_other(
    log: Path, calls: list[Call], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suffixsvc_caches.building.corpus.MOST_TOKENS", 100)
    monkeypatch.setattr("suffixsvc_caches.building.corpus.BATCH_TOKENS", 150)
    build(spec_of(log, tmp_path, CorpusTarget(NS, tmp_path / "data")))
    with SuffixCache(tmp_path / "data") as cache:
        parts = as_calls(held(cache))[120:-1]
    assert [part.response for part in parts] == [(list(range(50)) * 2)] * 20
    assert [part.prompt for part in parts] == [[9] * 64, *[list(range(36, 50)) + list(range(50))] * 19]
    assert sum(len(call.response) for call in calls) == sum(len(p.response) for p in parts) + sum(
        len(call.response) for call in [*calls[:120], calls[-1]]
    )


def test_a_namespace_with_outputs_is_refused(log: Path, calls: list[Call], tmp_path: Path) -> None:
    with SuffixCache(tmp_path / "data") as cache:
        cache.namespace(NS).add_output([1, 2, 3])
    target = CorpusTarget(NS, tmp_path / "data")
    with pytest.raises(InvalidInputError, match="must be empty") as caught:
        build(spec_of(log, tmp_path, target))
    assert caught.value.got == "1 outputs"
    with SuffixCache(tmp_path / "data") as cache:
        assert len(held(cache)) == 1
    added = CorpusTarget(NS, tmp_path / "data", add=True)
    assert build(spec_of(log, tmp_path, added)).corpus_outputs == len(calls)
    with SuffixCache(tmp_path / "data") as cache:
        assert as_calls(held(cache))[1:] == expected(calls)


def test_a_namespace_of_another_tokenizer_is_refused(log: Path, tmp_path: Path) -> None:
    with SuffixCache(tmp_path / "data") as cache:
        cache.namespace(NS, tokenizer="xxh3:fedcba9876543210").add_output([1, 2, 3])
    with pytest.raises(TokenizerMismatchError):
        build(spec_of(log, tmp_path, CorpusTarget(NS, tmp_path / "data", add=True)))


def test_counts_are_kept_after_a_locked_folder_and_a_full_disk(
    log: Path, calls: list[Call], tmp_path: Path
) -> None:
    """The lookup cache, written before the corpus was loaded, is replaced by the next run."""
    spec = spec_of(log, tmp_path, CorpusTarget(NS, tmp_path / "data"), static=LookupSpec(tmp_path / "s.bin"))
    with SuffixCache(tmp_path / "data"), pytest.raises(StoreLockedError):
        build(spec)
    with files_up_to(100 << 10), pytest.raises(StoreError):
        build(spec)
    static = (tmp_path / "s.bin").read_bytes()
    result = build(spec)
    assert result.counted.resumed_tokens == result.counted.tokens
    assert (tmp_path / "s.bin").read_bytes() == static
    with SuffixCache(tmp_path / "data") as cache:
        cache.check()
        assert as_calls(held(cache)) == expected(calls)


def test_outputs_removed_during_a_load_are_detected(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SuffixCache(tmp_path / "data") as cache:
        kept = [cache.namespace(NS).add_output([1, 2, 3, i]) for i in range(3)]
    spec = spec_of(log, tmp_path, CorpusTarget(NS, tmp_path / "data", add=True))
    with monkeypatch.context() as patch:
        patch.setattr("suffixsvc_caches.building.corpus.output_batches", lambda outputs: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            build(spec)
    with SuffixCache(tmp_path / "data") as cache:
        cache.namespace(NS).delete(output_ids=[kept[0]])
    with pytest.raises(InvalidInputError, match="lost outputs"):
        build(spec)


def test_into_a_running_service(log: Path, calls: list[Call], tmp_path: Path) -> None:
    with socket_dir() as folder, SuffixCache(tmp_path / "data") as cache:
        with serving(cache, f"unix:{folder / 's.sock'}") as (_, address):
            target = CorpusTarget(NS, server=address)
            assert build(spec_of(log, tmp_path, target)).corpus_outputs == len(calls)
            with pytest.raises(InvalidInputError, match="must be empty"):
                build(spec_of(log, tmp_path, target))
            with SuffixClient(address) as client:
                draft = client.namespace(NS).open_session([1]).step([40, 41, 42, 43], max_draft_tokens=6)
                assert draft.token_ids.tolist() == [(44 + i) % 50 for i in range(len(draft))]
                assert len(draft) >= 3
        corpus = [
            each for each in held(cache) if each.output.corpus
        ]  # the session has written an output, too
        assert as_calls(corpus) == expected(calls)


def test_a_load_resumes_after_the_service_restarts(
    log: Path, calls: list[Call], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suffixsvc_caches.building.corpus.BATCH_OUTPUTS", 25)
    with socket_dir() as folder, SuffixCache(tmp_path / "data") as cache:
        address = f"unix:{folder / 's.sock'}"
        spec = spec_of(log, tmp_path, CorpusTarget(NS, server=address))
        with pytest.raises(ServiceError):
            build(spec)
        with serving(cache, address) as (server, _):

            class Watch(BuildObserver):
                def on_load_progress(self, outputs: int) -> None:
                    if outputs >= 50:
                        server.drain()

            with pytest.raises(ServiceError):
                build(spec, Watch())
        assert len(held(cache)) == 50
        with serving(cache, address):
            assert build(spec).corpus_outputs == len(calls)
        assert as_calls(held(cache)) == expected(calls)


def test_a_batch_that_is_sent_twice_is_stored_once(
    log: Path, calls: list[Call], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service stored a batch, and the build was killed before it recorded that, or before the reply: the
    resumed build sent the batch again, and the corpus had it twice."""
    monkeypatch.setattr("suffixsvc_caches.building.corpus.BATCH_OUTPUTS", 25)
    with socket_dir() as folder, SuffixCache(tmp_path / "data") as cache:
        address = f"unix:{folder / 's.sock'}"
        spec = spec_of(log, tmp_path, CorpusTarget(NS, server=address))

        def killed(journal: Journal, loaded: int) -> None:
            raise KeyboardInterrupt

        with serving(cache, address):
            with monkeypatch.context() as patch:
                patch.setattr(Journal, "add_loaded", killed)
                with pytest.raises(KeyboardInterrupt):
                    build(spec)
            assert len(held(cache)) == 25
            assert build(spec).corpus_outputs == len(calls)
        assert as_calls(held(cache)) == expected(calls)
        cache.check()


def test_a_corpus_has_one_destination(tmp_path: Path) -> None:
    for data, server in ((tmp_path, "unix:/s"), (None, "")):
        with pytest.raises(InvalidConfigError, match="either a data folder or a server"):
            CorpusTarget(NS, data, server)

"""The corpus in SGLang's order of calls: trees of full width, tails and totals, requests that leave."""

from __future__ import annotations

import random
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import structlog

from suffixsvc import SuffixCache
from suffixsvc.errors import InvalidConfigError, InvalidInputError
from suffixsvc.types import Draft
from suffixsvc_adapters import SessionTracker, TrackerConfig
from suffixsvc_adapters.sglang_ngram import (
    SuffixCorpus,
    after_worker_init,
    before_prepare_draft_tokens,
    register,
)
from suffixsvc_adapters.tracking.tree_mask import tree_and_mask
from support.engine_parts import parts_of
from support.recorded_calls import Call
from support.sglang_ngram_worker import NgramWorker


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the environment of an SGLang process says."""
    monkeypatch.setenv("SUFFIXSVC_ADAPTER_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("SUFFIXSVC_ADAPTER_NAMESPACE", "sglang")
    monkeypatch.setenv("SUFFIXSVC_ADAPTER_IDLE_SECONDS", "3600")
    return tmp_path / "cache"


def worker_with_corpus(**settings: Any) -> NgramWorker:
    worker = NgramWorker(**settings)
    after_worker_init(None, worker)
    return worker


@pytest.mark.parametrize(("width", "topk"), [(12, 10), (8, 1), (24, 10), (2, 4), (1, 1)])
def test_a_batch_writes_its_texts_and_they_are_kept(
    width: int, topk: int, recorded: list[Call], folder: Path
) -> None:
    worker = worker_with_corpus(width=width, topk=topk)
    corpus = worker.ngram_corpus
    worker.write(recorded[:20])
    if width > 2:
        assert worker.rates.accepted > worker.rates.tokens / 3
    corpus.close()
    assert corpus.stats.failures == 0
    assert corpus.stats.opened == 20  # no request needed a second session
    assert sorted(worker.texts) == sorted(call.response for call in recorded[:20])
    with SuffixCache(folder) as cache:
        cache.check()
        kept = [tuple(stored.output.token_ids.tolist()) for stored in parts_of(cache).store.scan("sglang")]
    # what the last step of a request wrote is never shown; else nothing is missing and nothing is added
    for call in recorded[:20]:
        ends = [len(call.response) - len(k) for k in kept if call.response[: len(k)] == k]
        assert min(ends) <= width


def brute_force_mask(draft: Draft, order: list[int], width: int) -> list[list[int]]:
    rows = [[int(i == j) for j in range(width)] for i in range(width)]
    for i in range(width):
        rows[i][0] = 1
    for at, node in enumerate(order, start=1):
        parent = int(draft.parents[node])
        while parent >= 0:
            rows[at][1 + order.index(parent)] = 1
            parent = int(draft.parents[parent])
    return rows


@pytest.mark.parametrize("seed", range(5))
def test_masks_are_those_of_brute_force(seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(50):
        n, width = rng.randrange(0, 9), rng.randrange(1, 9)
        parents = [rng.randrange(-1, i) if i else -1 for i in range(n)]
        draft = Draft(
            np.arange(100, 100 + n, dtype=np.int32),
            np.array(parents, np.int32),
            np.full(n, 0.5, np.float32),
            np.full(n, 2, np.uint8),
            np.zeros(n, np.int32),
        )
        tokens, mask = tree_and_mask(7, draft, width)
        taken = parents[: width - 1]
        depth = [0] * len(taken)
        for i, parent in enumerate(taken):
            depth[i] = 0 if parent < 0 else depth[parent] + 1
        order = sorted(range(len(taken)), key=lambda i: (depth[i], i))
        assert tokens.tolist() == [7, *(100 + i for i in order)] + [0] * (width - 1 - len(order))
        assert mask.tolist() == brute_force_mask(draft, order, width)
        assert (tokens.dtype, mask.dtype) == (np.int64, np.int64)


def test_siblings_of_a_tree_are_different_tokens(recorded: list[Call], folder: Path) -> None:
    """SGLang finds a child by its token: twins would hide one another."""
    worker = worker_with_corpus()
    corpus, real = worker.ngram_corpus, worker.ngram_corpus.batch_get
    branching = 0

    def watched(*given: Any) -> Any:
        nonlocal branching
        tokens, mask = real(*given)
        for tree, ancestors in zip(tokens.reshape(-1, 12), mask.reshape(-1, 12, 12), strict=True):
            order = np.arange(12)
            parents = (ancestors * (order < order[:, None]) * order).argmax(axis=1)
            drafted = [(p, t) for p, t in zip(parents[1:].tolist(), tree[1:].tolist(), strict=True) if t]
            assert len(set(drafted)) == len(drafted)
            branching += len({p for p, _ in drafted}) < len(drafted)
        return tokens, mask

    corpus.batch_get = watched
    worker.write(recorded[:10])
    corpus.close()
    assert branching > 0


def test_without_its_prompt_a_request_is_drafted_for_from_its_tail() -> None:
    with SuffixCache() as cache, SessionTracker(cache.namespace("a"), TrackerConfig(tree=True)) as tracker:
        corpus = SuffixCorpus(tracker, 4)
        tokens, mask = corpus.batch_get(["x"], [[5, 6, 5, 6, 5]], [1000])
        assert tokens.tolist()[:2] == [5, 6]
        assert mask.shape == (16,)
        corpus.batch_get(["x"], [[5, 6, 5, 6, 5, 6, 7]], [1002])
        assert tracker.stats.opened == 1
        corpus.batch_get(["x"], [[1, 2, 3]], [1100])  # 95 tokens were never shown
        assert tracker.stats.opened == 2
        corpus.erase_match_state(["x", "never heard of"])
        tracker.flush()
        assert tracker.stats.live == 1
        assert [s.output.token_ids.tolist() for s in parts_of(cache).store.scan("a")] == [[1, 2, 3]]


def test_a_request_that_was_retracted_begins_anew() -> None:
    prompt, wrote = list(range(1, 60)), [70, 71, 72]
    with SuffixCache() as cache, SessionTracker(cache.namespace("a"), TrackerConfig(tree=True)) as tracker:
        corpus = SuffixCorpus(tracker, 4)

        def ask(output: list[int]) -> None:
            request = SimpleNamespace(rid="x", origin_input_ids_unpadded=prompt)
            before_prepare_draft_tokens(SimpleNamespace(ngram_corpus=corpus), SimpleNamespace(reqs=[request]))
            corpus.batch_get(["x"], [[*prompt, *output][-18:]], [len(prompt) + len(output)])

        ask(wrote[:1])
        ask(wrote)
        corpus.erase_match_state(["x"])
        ask([*wrote, 73])
        corpus.reset()
        tracker.flush()
        kept = [stored.output.token_ids.tolist() for stored in parts_of(cache).store.scan("a")]
        assert kept == [wrote, [*wrote, 73]]


def test_whatever_sglang_hands_over_a_tree_of_full_width_comes_back() -> None:
    with SuffixCache() as cache, SessionTracker(cache.namespace("a"), TrackerConfig(tree=True)) as tracker:
        corpus = SuffixCorpus(tracker, 4)
        for names, tails, totals in (
            (["a"], [[]], [0]),
            (["a", "b"], [[1, 2]], [2, 5]),
            (["a"], [[-3]], [1]),
            (["a"], [[1, 2, 3]], [1]),
            (["a"], [["x"]], [1]),
            (["a"], None, None),
            ([], [], []),
        ):
            with structlog.testing.capture_logs():
                tokens, mask = corpus.batch_get(names, tails, totals)  # type: ignore[arg-type]  # that is the test
            assert (len(tokens), len(mask)) == (4 * len(names), 16 * len(names))
            for row in mask.reshape(-1, 4, 4):
                assert row.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]]
        assert corpus.batch_get(["ok"], [[4, 5, 4, 5, 4]], [5])[0].tolist()[:2] == [4, 5]
        assert corpus.batch_put([[1, 2]]) is None
        assert corpus.synchronize() is None


def test_external_corpora_are_refused_and_none_are_listed() -> None:
    with SuffixCache() as cache, SessionTracker(cache.namespace("a")) as tracker:
        corpus = SuffixCorpus(tracker, 4)
        with pytest.raises(InvalidInputError, match="suffixsvc build"):
            corpus.load_external_corpus_named("docs", [[1, 2]])
        with pytest.raises(ValueError, match="docs"):  # what SGLang's own raises
            corpus.remove_external_corpus("docs")
        assert corpus.list_external_corpora() == {}


def test_several_ranks_are_refused(folder: Path) -> None:
    worker = NgramWorker()
    worker.server_args.tp_size = 2
    with pytest.raises(InvalidConfigError, match="several ranks"):
        after_worker_init(None, worker)
    assert worker.ngram_corpus is None


def test_a_worker_that_kept_its_own_corpus_is_left_alone() -> None:
    before_prepare_draft_tokens(SimpleNamespace(ngram_corpus=object()), None)


def test_the_plugin_does_nothing_unless_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang is not installed here: had it gone on, it would have failed."""
    for name in ("SUFFIXSVC_ADAPTER_DATA", "SUFFIXSVC_ADAPTER_NAMESPACE", "SUFFIXSVC_ADAPTER_TARGET"):
        monkeypatch.delenv(name, raising=False)
    assert register() is None
    monkeypatch.setenv("SUFFIXSVC_ADAPTER_NAMESPACE", "x")
    with pytest.raises(ImportError, match="sglang"):
        register()


def test_the_entry_point_is_the_plugin() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    ((name, value),) = tomllib.loads(text)["project"]["entry-points"]["sglang.srt.plugins"].items()
    point = EntryPoint(name, value, "sglang.srt.plugins")
    assert (point.name, point.load()) == ("suffixsvc", register)

"""The embedded engine: drafting, visibility, n-gram counts, concurrency and restarts."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from engine_testing import SQL, write

from suffixsvc import DraftSource, SuffixCache
from suffixsvc.errors import (
    AppendConflict,
    AppendGap,
    IndexCorruptError,
    InvalidInputError,
    LimitExceededError,
    TokenizerMismatchError,
    UnknownNamespaceError,
)
from support.engine_parts import parts_of


def test_what_was_written_before_is_drafted_again(cache: SuffixCache) -> None:
    for _ in range(3):
        write(cache, SQL)
    session = cache.namespace("acme/m").open_session([9, 9])
    draft = session.step(SQL[:8], max_draft_tokens=16, verify_cost=0.01)
    assert draft.token_ids.tolist() == SQL[8 : 8 + len(draft)]
    assert len(draft) >= 8
    assert set(draft.sources.tolist()) == {int(DraftSource.NAMESPACE)}
    assert draft.parents.tolist() == list(range(-1, len(draft) - 1))
    assert np.all((draft.probs > 0) & (draft.probs <= 1))
    assert draft.match_lens[0] == 8
    session.close(commit=False)


def test_a_session_drafts_from_its_own_prompt(cache: SuffixCache) -> None:
    session = cache.namespace("acme/m").open_session([*SQL, 1, 2, *SQL, 3])
    draft = session.step(SQL[:6], verify_cost=0.01)
    assert draft.token_ids[:4].tolist() == SQL[6:10]
    assert set(draft.sources.tolist()) == {int(DraftSource.SESSION)}
    session.close(commit=False)


def test_own_output_is_never_called_namespace_evidence(cache: SuffixCache) -> None:
    """The namespace's index holds the session's live text as well; it must not count as text of others."""
    session = cache.namespace("acme/m").open_session([1])
    session.step(SQL, max_draft_tokens=0)
    session.step(SQL, max_draft_tokens=0)
    draft = session.step(SQL[:10], verify_cost=0.01)
    assert len(draft)
    assert set(draft.sources.tolist()) == {int(DraftSource.SESSION)}


def test_the_prompt_tail_is_context_and_never_drafted(cache: SuffixCache) -> None:
    prompt = [7, 8, 9, 10, 11, 12]
    for _ in range(4):
        write(cache, SQL, prompt=prompt)
    reader = cache.namespace("acme/m").open_session([55, 7, 8, 9])
    assert len(reader.step([], verify_cost=0.0)) == 0, "prompt tokens 10, 11 were drafted"
    other = cache.namespace("acme/m").open_session([55, *prompt])
    assert other.step([], verify_cost=0.01).token_ids[:3].tolist() == SQL[:3], "the tail is no context"


def test_siblings_see_live_text_at_once_and_retraction_takes_it_back(cache: SuffixCache) -> None:
    namespace = cache.namespace("acme/m")
    writer, reader = namespace.open_session([1]), namespace.open_session([2])
    writer.step(SQL, max_draft_tokens=0)
    draft = reader.step(SQL[:10], verify_cost=0.01)
    assert draft.token_ids[:1].tolist() == SQL[10:11]
    assert writer.close(commit=False) is None
    late = namespace.open_session([3])
    assert len(late.step(SQL[20:25], verify_cost=0.0)) == 0
    assert len(reader.step([], verify_cost=0.0)) == 0
    reader.close(commit=False)
    late.close(commit=False)
    assert namespace.stats().tokens == 0
    assert namespace.stats().index_nodes == 1


def test_what_was_retracted_is_not_kept(cache: SuffixCache) -> None:
    namespace = cache.namespace("acme/m")
    session = namespace.open_session([1])
    session.step(SQL, 0)
    session.retract()
    session.step(SQL[:5], 0)
    assert session.close() is None
    stats = cache.stats()
    assert (stats.outputs, stats.tokens, stats.held_bytes) == (0, 0, 0)


def test_check_finds_what_the_index_lacks(tmp_path: Path) -> None:
    with SuffixCache() as cache:
        kept = write(cache, SQL[:20])
        lost = write(cache, SQL[30:])
        cache.check()
        index = parts_of(cache).catalog.index_of("acme/m")
        assert index.index.remove(np.array([1, 2, 3, *SQL[30:]], np.int32), 3)
        with pytest.raises(IndexCorruptError, match=f"output {lost} is in the log but not in the index"):
            cache.check()
        assert kept != lost


def test_forget_removes_from_drafts_and_log(cache: SuffixCache) -> None:
    output_id = write(cache, SQL)
    namespace = cache.namespace("acme/m")
    assert namespace.delete(output_ids=[output_id]).outputs == 1
    assert len(namespace.open_session([3]).step(SQL[:5], verify_cost=0.0)) == 0
    assert namespace.delete(output_ids=[output_id]).outputs == 0
    assert namespace.stats().outputs == 0


def test_namespaces_are_walls_unless_reads_are_granted(cache: SuffixCache) -> None:
    write(cache, SQL, "acme/a")
    assert len(cache.namespace("acme/b").open_session([1]).step(SQL[:8], verify_cost=0.0)) == 0
    reader = cache.namespace("acme/b").open_session([1], reads=["acme/a"])
    assert reader.step(SQL[:8], verify_cost=0.01).token_ids[:2].tolist() == SQL[8:10]
    reader.close()
    assert cache.namespace("acme/a").stats().outputs == 1
    assert cache.namespace("acme/b").stats().outputs == 1
    with pytest.raises(UnknownNamespaceError):
        cache.namespace("acme/b").open_session([1], reads=["acme/nowhere"])


def test_a_session_reads_a_bounded_number_of_namespaces(cache: SuffixCache) -> None:
    paths = [f"team/{i}" for i in range(8)]
    for i, path in enumerate(paths):
        write(cache, [*range(1000 * i, 1000 * i + 9)], path)
    session = cache.namespace("own").open_session([1], reads=paths[:7])
    for i in range(7):
        session.append_context([77])
        draft = session.step(list(range(1000 * i, 1000 * i + 6)), verify_cost=0.0)
        assert draft.token_ids[:1].tolist() == [1000 * i + 6]
    with pytest.raises(LimitExceededError, match="7"):
        cache.namespace("own").open_session([1], reads=paths)


def test_tokenizer_fingerprints_bind_a_namespace(cache: SuffixCache) -> None:
    bound = cache.namespace("acme/m", tokenizer="xxh3:1")
    cache.namespace("acme/m")
    cache.namespace("acme/m", tokenizer="xxh3:1")
    assert bound.tokenizer == "xxh3:1"
    with pytest.raises(TokenizerMismatchError) as caught:
        cache.namespace("acme/m", tokenizer="xxh3:2")
    assert "acme/m holds tokens of another tokenizer; expected xxh3:1; got xxh3:2" in str(caught.value)
    other = cache.namespace("acme/other", tokenizer="xxh3:2")
    assert other.stats().outputs == 0
    with pytest.raises(TokenizerMismatchError, match=r"acme/other .*; expected xxh3:1; got xxh3:2") as caught:
        cache.namespace("acme/m", tokenizer="xxh3:1").open_session([1], reads=["acme/other"])
    assert "Read only namespaces" in str(caught.value)


def test_offsets_make_appends_idempotent(cache: SuffixCache) -> None:
    session = cache.namespace("acme/m").open_session([1, 2, 3])
    session.step([10, 11, 12], at=3)
    before = session.token_ids().tolist()
    session.step([10, 11, 12], at=3)
    session.step([2, 3, 10], at=1)
    assert session.token_ids().tolist() == before
    session.step([11, 12, 13, 14], at=4)
    assert session.token_ids().tolist() == [*before, 13, 14]
    with pytest.raises(AppendConflict) as conflict:
        session.step([12, 99], at=5)
    assert conflict.value.position == 6
    with pytest.raises(AppendGap) as gap:
        session.step([1], at=20)
    assert (gap.value.expected_position, gap.value.got_position) == (8, 20)
    assert session.token_ids().tolist() == [*before, 13, 14]
    long = cache.namespace("acme/m").open_session(list(range(300)))
    long.step([299], at=np.int16(299))  # type: ignore[arg-type] # a numpy integer is an integer


def test_context_between_outputs_is_neither_stored_nor_adjacent(cache: SuffixCache) -> None:
    namespace = cache.namespace("acme/m")
    session = namespace.open_session([1, 2])
    session.step([10, 11, 12], max_draft_tokens=0)
    session.append_context([50, 51])
    session.step([20, 21, 22], max_draft_tokens=0)
    assert session.close() is not None
    cache.check()
    assert namespace.stats().tokens == 6
    tokens, counts = namespace.ngrams(2)
    grams = {tuple(g): int(c) for g, c in zip(tokens.tolist(), counts, strict=True)}
    assert (10, 11) in grams
    assert (20, 21) in grams
    assert (12, 20) not in grams
    assert not any(50 in g or 51 in g for g in grams)


def test_sessions_and_namespaces_keep_ngram_counts(cache: SuffixCache) -> None:
    namespace = cache.namespace("m")
    session = namespace.open_session([1, 2, 1, 2])
    session.step([1, 2, 3], max_draft_tokens=0)
    tokens, counts = session.ngrams(2)
    assert dict(zip(map(tuple, tokens.tolist()), counts.tolist(), strict=True)) == {
        (1, 2): 3,
        (2, 1): 2,
        (2, 3): 1,
    }
    for n in (1, 2, 3, 4):
        tokens, counts = namespace.ngrams(n)
        assert int(counts.sum()) == 3, "every token written counts once, the prompt not at all"
    for bad in (0, -1, 65, 1.5, True):
        with pytest.raises(InvalidInputError):
            namespace.ngrams(bad)  # type: ignore[arg-type] # the point of the test
        with pytest.raises(InvalidInputError):
            session.ngrams(bad)  # type: ignore[arg-type] # the point of the test


def test_a_resumed_session_keeps_output_as_output(cache: SuffixCache) -> None:
    namespace = cache.namespace("acme/m")
    session = namespace.open_session([1, 2], output_token_ids=SQL[:20])
    session.step(SQL[20:], max_draft_tokens=0)
    assert session.close() is not None
    assert namespace.stats().tokens == len(SQL)


def test_sessions_step_concurrently_with_writers_and_removals(cache: SuffixCache) -> None:
    namespace = cache.namespace("acme/m")
    failures: list[BaseException] = []

    def agent(k: int) -> None:
        try:
            random = np.random.default_rng(k)
            for round_ in range(6):
                session = namespace.open_session(random.integers(0, 50, 20))
                at = 0
                while at < 60:
                    n = int(random.integers(1, 5))
                    session.step(random.integers(0, 6, n), max_draft_tokens=8, verify_cost=0.05)
                    at += n
                kept = session.close(commit=bool(round_ % 3))
                if kept is not None and round_ % 2:
                    namespace.delete(output_ids=[kept])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=agent, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
    assert cache.stats().sessions == 0
    cache.check()


def test_history_is_back_after_a_restart(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with SuffixCache(tmp_path / "d") as cache:
        kept = [write(cache, SQL), write(cache, SQL[::-1])]
        cache.namespace("acme/m").delete(output_ids=[kept[1]])
        before = cache.namespace("acme/m").ngrams(2)
    with SuffixCache(tmp_path / "d", progress=lambda done, total: seen.append((done, total))) as cache:
        after = cache.namespace("acme/m").ngrams(2)
        assert sorted(map(tuple, before[0].tolist())) == sorted(map(tuple, after[0].tolist()))
        draft = cache.namespace("acme/m").open_session([9]).step(SQL[:8], verify_cost=0.01)
        assert draft.token_ids.tolist()[:1] == SQL[8:9]
        cache.check()
    assert seen[-1] == (1, 1)


def test_expired_outputs_go(tmp_path: Path) -> None:
    with SuffixCache(tmp_path / "d") as cache:
        namespace = cache.namespace("m")
        namespace.add_output(SQL, ttl_seconds=5)
        namespace.add_output([1, 2, 3])
        assert cache.expire(now=0.0) == 0
        assert cache.expire(now=4e9) == 1
        assert namespace.stats().tokens == 3
        cache.check()


def test_what_was_learned_survives(tmp_path: Path) -> None:
    with SuffixCache(tmp_path / "d") as cache:
        for i in range(6):
            session = cache.namespace("m").open_session([i])
            for token in SQL:
                session.step([token], verify_cost=0.05)
            session.close()
        learned = parts_of(cache).catalog.index_of("m").learner.save()
    with SuffixCache(tmp_path / "d") as cache:
        assert parts_of(cache).catalog.index_of("m").learner.save() == learned


def test_trees_keep_their_parents_before_their_children(cache: SuffixCache) -> None:
    random = np.random.default_rng(3)
    namespace = cache.namespace("m")
    for _ in range(30):
        namespace.add_output([1, 2, 3, int(random.integers(4, 7)), int(random.integers(7, 10)), 11])
    draft = namespace.open_session([0]).step([1, 2, 3], max_draft_tokens=12, verify_cost=0.01, tree=True)
    assert len(draft) > 4
    assert all(-1 <= p < i for i, p in enumerate(draft.parents.tolist()))
    assert (draft.parents == -1).sum() > 1
    paths = set()
    for i, parent in enumerate(draft.parents.tolist()):
        assert (parent, int(draft.token_ids[i])) not in paths, "a branch is drafted twice"
        paths.add((parent, int(draft.token_ids[i])))

"""The embedded engine's contracts: its API, what bad input gets, visibility, durability."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffixsvc import DraftSource, Limits, SuffixCache, Verified
from suffixsvc.errors import (
    AppendConflict,
    AppendGap,
    IndexCorruptError,
    InvalidConfigError,
    InvalidCostError,
    InvalidInputError,
    InvalidLabelsError,
    InvalidNamespaceError,
    InvalidTokensError,
    LimitExceededError,
    SessionClosedError,
    StoreFullError,
    TokenizerMismatchError,
    UnknownNamespaceError,
    UnknownOutputError,
)
from suffixsvc.types import NewOutput, Store

SQL = list(range(100, 160))


@pytest.fixture(params=["memory", "folder"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SuffixCache]:
    with SuffixCache(None if request.param == "memory" else tmp_path / "data") as cache:
        yield cache
        cache.check()


def write(
    cache: SuffixCache, tokens: list[int], path: str = "acme/m", prompt: list[int] | None = None
) -> int:
    session = cache.namespace(path).open_session(prompt or [1, 2, 3])
    session.step(tokens, max_draft_tokens=0)
    output_id = session.close()
    assert output_id is not None
    return output_id


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
    """The namespace's index holds the session's own live text too; it must not count as others'."""
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
        index = cache._catalog.index_of("acme/m")
        assert index.index.remove(np.array([1, 2, 3, *SQL[30:]], np.int32), 3)
        with pytest.raises(IndexCorruptError, match=f"output {lost} is in the log, not in the index"):
            cache.check()
        assert kept != lost


def test_forget_removes_from_drafts_and_log(cache: SuffixCache) -> None:
    output_id = write(cache, SQL)
    namespace = cache.namespace("acme/m")
    namespace.forget(output_id)
    assert len(namespace.open_session([3]).step(SQL[:5], verify_cost=0.0)) == 0
    with pytest.raises(UnknownOutputError):
        namespace.forget(output_id)
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
    assert "xxh3:1" in str(caught.value)
    assert "xxh3:2" in str(caught.value)
    other = cache.namespace("acme/other", tokenizer="xxh3:2")
    assert other.stats().outputs == 0
    with pytest.raises(TokenizerMismatchError):
        cache.namespace("acme/m", tokenizer="xxh3:1").open_session([1], reads=["acme/other"])


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


@pytest.mark.parametrize(
    "bad",
    [
        [-1],
        [2**31],
        [1.5],
        ["a"],
        "abc",
        b"abcd",
        [[1, 2], [3, 4]],
        np.zeros((2, 2), np.int32),
        np.zeros(3, np.float32),
        [None],
        [2**70],
        np.array([1, -5], np.int64),
        np.array([1, -5], np.int32),
        5,
        {"a": 1},
    ],
    ids=repr,
)
def test_what_is_no_token_array_is_refused_whole(cache: SuffixCache, bad: object) -> None:
    namespace = cache.namespace("acme/m")
    with pytest.raises(InvalidTokensError) as caught:
        namespace.open_session(bad)  # type: ignore[arg-type] # the point of the test
    assert caught.value.expected is not None
    assert caught.value.got is not None
    session = namespace.open_session([1])
    with pytest.raises(InvalidTokensError):
        session.step(bad)  # type: ignore[arg-type] # the point of the test
    with pytest.raises(InvalidTokensError):
        session.append_context(bad)  # type: ignore[arg-type] # the point of the test
    with pytest.raises(InvalidTokensError):
        namespace.add_output(bad)  # type: ignore[arg-type] # the point of the test
    assert session.length == 1
    assert cache.stats().sessions == 1


def test_edge_token_ids_and_dtypes_are_taken(cache: SuffixCache) -> None:
    for tokens in ([0, 2**31 - 1], np.array([0, 2**31 - 1], np.int64), np.array([1, 2], np.uint16), range(4)):
        session = cache.namespace("acme/m").open_session(tokens)  # type: ignore[arg-type] # a range is a sequence
        session.step(tokens)  # type: ignore[arg-type] # a range is a sequence
        assert session.close() is not None


@pytest.mark.parametrize(
    "cost",
    [
        *(float("nan"), float("inf"), -0.1, [], [1.0], [0, 1, float("nan")], "x", "0.02", 1j, True),
        *(["0", "1", "2"], [True, True], np.array([0, 1, True], object), np.datetime64(1, "s"), [0, [1, 2]]),
        *([0, 0, 0], [0, 29.5, 40.0], [0, 1e308, 1e308]),
    ],
    ids=repr,
)
def test_costs_that_make_no_sense_are_refused(cache: SuffixCache, cost: object) -> None:
    session = cache.namespace("acme/m").open_session([1])
    with pytest.raises(InvalidCostError):
        session.step([5], verify_cost=cost)  # type: ignore[arg-type] # the point of the test
    assert session.length == 1


def test_curves_may_be_short_and_need_not_be_monotone(cache: SuffixCache) -> None:
    for _ in range(3):
        write(cache, SQL)
    namespace = cache.namespace("acme/m")
    assert len(namespace.open_session([1]).step(SQL[:9], verify_cost=[0, 1, 1.01, 1.02])) <= 2
    # Width 2 and 3 cost more than they can give; width 9 is nearly free: only a look past them finds it.
    steep = [0.0, 1.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 1.05]
    assert len(namespace.open_session([1]).step(SQL[:9], verify_cost=steep)) == 8
    assert len(namespace.open_session([1]).step(SQL[:9], verify_cost=[0.0, 1.0] + [50.0] * 20)) == 0


def test_other_arguments_that_make_no_sense(cache: SuffixCache) -> None:
    namespace = cache.namespace("acme/m")
    session = namespace.open_session([1])
    for bad in (-1, 1.5, "3", True, None):
        with pytest.raises(InvalidInputError):
            session.step([5], max_draft_tokens=bad)  # type: ignore[arg-type] # the point of the test
    for reads in (5, "a", b"a"):
        with pytest.raises(InvalidInputError):
            namespace.open_session([1], reads=reads)  # type: ignore[arg-type] # the point of the test
    for tree in ("yes", 3, None, np.array([1, 2])):
        with pytest.raises(InvalidInputError):
            session.step([5], tree=tree)  # type: ignore[arg-type] # the point of the test
    for verified in ((0, 0, 0), (2, 2, 0), (2, 1, 99), "x", (1,), (float("inf"), 0, 0), (2.7, 0, 0)):
        with pytest.raises(InvalidInputError):
            session.step([5], verified=verified)  # type: ignore[arg-type] # the point of the test
    for at in (-1, 1.0, True):
        with pytest.raises(InvalidInputError):
            session.step([5], at=at)  # type: ignore[arg-type] # the point of the test
    for labels in ("x", {"a": 1}, {"": "x"}, {"a": "x" * 300}, dict.fromkeys(map(str, range(20)), "v")):
        with pytest.raises(InvalidLabelsError):
            namespace.open_session([1], labels=labels)  # type: ignore[arg-type] # the point of the test
    for path in ("", "/a", "a//b", "a/", "a b", "x" * 201, "a/../b", 3, "a\n"):
        with pytest.raises(InvalidNamespaceError):
            cache.namespace(path)  # type: ignore[arg-type] # the point of the test
    assert session.length == 1
    with pytest.raises(InvalidTokensError):
        namespace.add_output([])


def test_limits_are_refused_by_name() -> None:
    limits = Limits(max_sessions=2, max_session_tokens=10, max_draft_tokens=3, max_output_tokens=5)
    with SuffixCache(limits=limits) as cache:
        namespace = cache.namespace("m")
        first = namespace.open_session(list(range(9)))
        first.step([5])
        with pytest.raises(LimitExceededError, match="max_session_tokens"):
            first.step([6])
        with pytest.raises(LimitExceededError, match="max_session_tokens"):
            namespace.open_session(list(range(11)))
        second = namespace.open_session([1])
        with pytest.raises(LimitExceededError, match="max_sessions"):
            namespace.open_session([1])
        second.close()
        namespace.open_session([1])
        with pytest.raises(LimitExceededError, match="max_output_tokens"):
            namespace.add_output(list(range(6)))
        namespace.add_output([1, 2, 3, 4, 5])
        namespace.add_output([1, 2, 3, 4, 5])
        first.close()
        assert len(namespace.open_session([0]).step([1, 2], max_draft_tokens=10_000, verify_cost=0.0)) <= 3


def test_sessions_dropped_without_close_free_their_place_and_take_their_text_back() -> None:
    """An exception between open and close used to leak a place and leave text that no log had."""
    with SuffixCache(limits=Limits(max_sessions=3)) as cache:
        namespace = cache.namespace("m")
        for i in range(9):
            namespace.open_session([i]).step(SQL[:20], max_draft_tokens=0)
            gc.collect()
        assert cache.stats().sessions == 0
        assert namespace.stats().index_nodes == 1


def test_a_session_is_a_context_manager(cache: SuffixCache) -> None:
    namespace = cache.namespace("m")
    with namespace.open_session([1]) as session:
        session.step(SQL, max_draft_tokens=0)
    assert namespace.stats().outputs == 1

    def fails() -> None:
        with namespace.open_session([1]) as failing:
            failing.step(SQL, max_draft_tokens=0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert namespace.stats().outputs == 1
    assert cache.stats().sessions == 0


def test_bulk_outputs_are_kept_all_or_none(cache: SuffixCache) -> None:
    """A malformed item behind a good one used to leave the good one in the index only."""
    namespace = cache.namespace("m")
    good = NewOutput("m", np.array(SQL, np.int32), (len(SQL),), np.empty(0, np.int32))
    for bad in (
        replace(good, token_ids=np.zeros((2, 2), np.int32)),
        replace(good, segment_lens=(1,)),
        replace(good, prompt_tail=np.zeros(65, np.int32)),
        replace(good, ttl_seconds=-1),
    ):
        with pytest.raises(InvalidInputError):
            namespace.add_outputs([good, bad])
        assert namespace.stats().tokens == 0
        assert namespace.stats().index_nodes == 1
    assert len(namespace.add_outputs([good, good])) == 2


class SlowStore:
    """A store whose commits finish when the test says so."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.waiting: list[tuple[Future[list[int]], Sequence[NewOutput], Any, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append(
        self, outputs: Sequence[NewOutput], create: Any = (), decided: Any = None
    ) -> Future[list[int]]:
        future: Future[list[int]] = InterruptedOnce()
        self.waiting.append((future, outputs, create, decided))
        return future

    def finish(self) -> None:
        for future, outputs, create, decided in self.waiting:
            future.set_result(self._store.append(outputs, create, decided).result())
        self.waiting.clear()


class InterruptedOnce(Future):  # type: ignore[type-arg] # generic only for type checkers
    """The first wait for it is interrupted, as by Ctrl-C."""

    interrupted = False

    def result(self, timeout: float | None = None) -> Any:
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        return super().result(timeout)


def test_an_interrupted_wait_leaves_index_and_log_in_step() -> None:
    """Ctrl-C while a commit was under way used to undo the index but not the log; a second close()
    stored the output again."""
    with SuffixCache() as cache:
        store = SlowStore(cache._store)
        cache._outputs._store = store  # type: ignore[assignment] # a store in all it is asked
        namespace = cache.namespace("m")
        with pytest.raises(KeyboardInterrupt):
            namespace.add_output(SQL)
        session = namespace.open_session([1])
        session.step(SQL[::-1], max_draft_tokens=0)
        with pytest.raises(KeyboardInterrupt):
            session.close()
        with pytest.raises(SessionClosedError):
            session.step([1])
        store.finish()
        output_id = session.close()
        assert output_id is not None
        assert namespace.stats().outputs == 2
        assert store.stats().outputs == 2
        namespace.forget(output_id)
        namespace.forget(output_id - 1)
        assert namespace.stats().index_nodes == 1
        cache.check()


def test_a_failed_commit_leaves_the_session_open_and_nothing_half_kept() -> None:
    with SuffixCache(limits=Limits(max_store_bytes=1 << 20)) as cache:
        namespace = cache.namespace("m")

        def fill() -> None:
            for i in range(1000):
                namespace.add_output(list(range(i, i + 4000)))

        with pytest.raises(StoreFullError):
            fill()
        kept = namespace.stats().outputs
        assert kept == cache._store.stats().outputs
        session = namespace.open_session([1])
        session.step(list(range(5000)), max_draft_tokens=0)
        with pytest.raises(StoreFullError):
            session.close()
        assert not session.closed
        assert session.close(commit=False) is None
        assert namespace.stats().outputs == kept
        cache.check()


@pytest.mark.parametrize("path", ["", 5, "a\0b", b"x"])
def test_a_path_that_is_none_is_refused(path: object) -> None:
    with pytest.raises(InvalidConfigError):
        SuffixCache(path)  # type: ignore[arg-type] # the point of the test


def test_namespaces_are_bounded() -> None:
    with SuffixCache(limits=Limits(max_namespaces=2)) as cache:
        cache.namespace("a").add_output([1])
        cache.namespace("b").add_output([1])
        cache.namespace("a")
        with pytest.raises(LimitExceededError, match="max_namespaces"):
            cache.namespace("c")


def test_a_closed_session_says_so_and_closing_again_repeats_its_answer(cache: SuffixCache) -> None:
    session = cache.namespace("acme/m").open_session([1])
    session.step([5, 6])
    output_id = session.close()
    assert session.closed
    assert session.close() == output_id
    with pytest.raises(SessionClosedError):
        session.step([7])
    with pytest.raises(SessionClosedError):
        session.append_context([7])
    assert cache.namespace("acme/m").open_session([1]).close() is None


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


def test_feedback_prices_what_was_really_sent(cache: SuffixCache) -> None:
    """A driver that sent nothing of our drafts must not be charged for them."""
    for _ in range(4):
        write(cache, SQL * 3)
    used, unused = (cache.namespace("acme/m").open_session([i]) for i in (1, 2))
    expensive = 0.3
    for i in range(0, 40, 2):
        used.step(SQL[i : i + 2], verify_cost=expensive)
        unused.step(SQL[i : i + 2], verify_cost=expensive, verified=Verified(1, 0))
    # The same tokens at a lower price: more gained per cost, so the bar for a drafted token is higher.
    assert unused._native.gain > used._native.gain


def test_tokens_told_without_a_draft_are_steps_of_one_token(cache: SuffixCache) -> None:
    """However long the draft was that an earlier step sent."""

    def gain(path: str, verified: Verified | None) -> float:
        for _ in range(4):
            write(cache, SQL * 3, path)
        session = cache.namespace(path).open_session([1])
        assert len(session.step(SQL[:8], verify_cost=0.0)) > 8
        session.step([7, 8], max_draft_tokens=0)
        session.step(SQL[12:20], max_draft_tokens=0, verified=verified)
        return session._native.gain

    assert gain("acme/plain", None) == gain("acme/told", Verified(1, 0))


@pytest.mark.parametrize("parts", [[1] * 6, [3, 3], [2, 1, 3], [1] * 4, [3, 1], [1, 3], [1]])
def test_a_step_may_be_told_in_parts(cache: SuffixCache, parts: list[int]) -> None:
    """What agrees with the last draft, and one more token, are one step of the target however they come."""
    draft, accepted = 5, sum(parts) - 1

    def outcome(path: str, parts: list[int]) -> tuple[float, int, bytes]:
        namespace = cache.namespace(path)
        for _ in range(4):
            write(cache, SQL * 3, path)
        session = namespace.open_session([1])
        assert len(session.step(SQL[:8], draft, verify_cost=0.0)) == draft
        truth = [*SQL[8 : 8 + accepted], 7]
        for n in parts:
            session.step(truth[:n], 0)
            truth = truth[n:]
        session.step([9, 10], 0)
        weights = namespace.learned_weights()
        return session._native.gain, namespace.stats().num_accepted_tokens, weights

    assert outcome("acme/parts", parts) == outcome("acme/whole", [accepted + 1])
    assert cache.namespace("acme/parts").stats().num_accepted_tokens == accepted


def test_the_last_part_of_a_step_may_come_with_feedback(cache: SuffixCache) -> None:
    def outcome(path: str, parts: list[tuple[int, Verified | None]]) -> tuple[float, int]:
        for _ in range(4):
            write(cache, SQL * 3, path)
        session = cache.namespace(path).open_session([1])
        assert len(session.step(SQL[:8], 4, verify_cost=0.1)) == 4
        truth = [*SQL[8:12], 7]
        for n, verified in parts:
            session.step(truth[:n], 0, verified=verified)
            truth = truth[n:]
        return session._native.gain, cache.namespace(path).stats().num_accepted_tokens

    whole = outcome("acme/whole", [(5, None)])
    assert whole[1] == 4
    for i, parts in enumerate(
        ([(5, Verified(5, 4))], [(1, None), (4, Verified(5, 4))], [(4, None), (1, None)])
    ):
        assert outcome(f"acme/{i}", parts) == whole


def test_a_huge_step_counts_as_one(cache: SuffixCache) -> None:
    namespace = cache.namespace("acme/m")
    for _ in range(3):
        write(cache, SQL)
    session = namespace.open_session([1])
    session.step(SQL[:8], 8)
    session.step([7] * 100_000, 0, verified=(2**31 - 1, 0, 2))
    session.step([7] * 100_000, 0, verified=(2**31 - 1, 2**31 - 2, 2))
    assert session._native.gain < 5
    assert len(namespace.open_session([1]).step(SQL[:8], 8)) == 8


def test_feedback_counts_no_more_than_was_written(cache: SuffixCache) -> None:
    session = cache.namespace("acme/m").open_session([1])
    session.step([2], verified=(2**31 - 1, 2**31 - 2, 1))
    assert cache.namespace("acme/m").stats().num_accepted_tokens == 1


def test_one_session_cannot_spoil_what_others_gain(cache: SuffixCache) -> None:
    """With whatever curve: their gain is shared, and saved."""
    for _ in range(3):
        write(cache, SQL)
    namespace = cache.namespace("acme/m")
    for curve in ([0, 1, 1e300, 1.0], [0, 1, 0, 0], [0, 1.0005, 1e300]):
        odd = namespace.open_session([1])
        for token in SQL * 20:
            odd.step([token], verify_cost=curve, verified=(9, 0, 1))
    assert namespace.learned_weights()
    later = namespace.open_session([1])
    later.step(SQL[:9], verify_cost=[0, 1, 1, 1.5, 2])
    assert 1e-3 < later._native.gain < 1e3


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
                    namespace.forget(kept)
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
        cache.namespace("acme/m").forget(kept[1])
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
        learned = cache._catalog.index_of("m").learner.save()
    with SuffixCache(tmp_path / "d") as cache:
        assert cache._catalog.index_of("m").learner.save() == learned


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

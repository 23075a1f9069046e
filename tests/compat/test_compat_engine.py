"""The Arctic classes over the engine: persistence, costs, failures, threads and invalid arguments."""

from __future__ import annotations

import math
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compat_testing import PROMPT, SQL, drafted, wrote

from suffixsvc import SuffixCache
from suffixsvc.compat.arctic import SuffixDecodingCache, SuffixDecodingDraft
from suffixsvc.engine import Namespace, Session
from suffixsvc.errors import (
    InvalidConfigError,
    InvalidCostError,
    InvalidInputError,
    InvalidTokensError,
    StoreFullError,
)


def test_a_folder_remembers(tmp_path: Path) -> None:
    with SuffixCache(tmp_path / "data") as engine, SuffixDecodingCache(cache=engine) as cache:
        wrote(cache, "a", SQL)
    with SuffixCache(tmp_path / "data") as engine, SuffixDecodingCache(cache=engine) as cache:
        assert list(cache.cached_requests) == []  # ids of an earlier process cannot be evicted here
        assert drafted(cache, [9], SQL[:8])[:3] == SQL[8:11]
        engine.check()


def test_an_engine_handed_in_stays_open() -> None:
    with SuffixCache() as engine:
        SuffixDecodingCache(cache=engine).close()
        assert engine.namespaces() == []


def test_closing_retracts_what_was_not_stopped() -> None:
    with SuffixCache() as engine:
        cache = SuffixDecodingCache(cache=engine)
        cache.start_request("a", PROMPT)
        cache.add_active_response("a", SQL)
        cache.close()
        cache.close()
        assert (engine.stats().sessions, engine.stats().outputs) == (0, 0)
        engine.check()


def test_an_expensive_target_gets_shorter_drafts() -> None:
    """The texts diverge after 40 tokens: a guess there pays only with a cheap verification."""

    def length(cost: float) -> int:
        with SuffixDecodingCache(verify_cost=cost) as cache:
            for i in range(3):
                wrote(cache, i, [*SQL[:40], *range(900 + 50 * i, 930 + 50 * i)])
            return len(drafted(cache, [9], SQL[:30], max_spec_tokens=24, min_token_prob=0.0))

    assert length(0.0) > length(0.5)


def test_another_context_than_the_text_drafts_too() -> None:
    """For callers that append tokens later: a context longer than the text, or of another text."""
    with SuffixDecodingCache() as cache:
        wrote(cache, "a", SQL)
        cache.start_request("b", [9, 8])
        cache.add_active_response("b", SQL[:6])
        ahead = cache.speculate("b", [9, 8, *SQL[:9]])
        tail = cache.speculate("b", SQL[3:9])
        other = cache.speculate("b", SQL[30:40])
        assert ahead.token_ids[:3] == tail.token_ids[:3] == SQL[9:12]
        assert other.token_ids[:3] == SQL[40:43]
        assert cache.speculate("b", SQL[:6]).token_ids[:3] == SQL[6:9]  # the request is unchanged
        cache.stop_request("b")


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16])
def test_a_context_is_taken_in_every_form(dtype: type) -> None:
    with SuffixDecodingCache() as cache:
        wrote(cache, "a", SQL)
        cache.start_request("b", np.array(PROMPT, dtype))
        cache.add_active_response("b", np.array(SQL[:9], dtype))
        spread = np.zeros(18, dtype)
        spread[::2] = SQL[:9]
        answers = [
            cache.speculate("b", context)
            for context in (
                np.array(SQL[:9], dtype),
                spread[::2],
                tuple(SQL[:9]),
                SQL[:9],
                [*PROMPT, *SQL[:9]],
            )
        ]
        assert answers[0].token_ids[:3] == SQL[9:12]
        assert all(answer == answers[0] for answer in answers)


def test_the_engine_counts_what_was_accepted() -> None:
    with SuffixCache() as engine, SuffixDecodingCache(cache=engine) as cache:
        wrote(cache, "a", SQL)
        cache.start_request("b", [9])
        cache.add_active_response("b", SQL[:10])
        draft = cache.speculate("b", SQL[:10], max_spec_tokens=4)
        cache.add_active_response("b", [*draft.token_ids[:2], 999])
        stats = engine.namespace("arctic").stats()
        assert (stats.num_steps, stats.num_drafts, stats.num_accepted_tokens) == (1, 1, 2)
        draft = cache.speculate("b", [999], max_spec_factor=9.0, min_token_prob=0.0)
        assert cache.speculate("b", [999], max_spec_tokens=0) == SuffixDecodingDraft()  # no draft is sent
        cache.add_active_response("b", [*draft.token_ids, 1000])
        assert engine.namespace("arctic").stats().num_accepted_tokens == 2


def test_a_response_that_cannot_be_evicted_stays_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    with SuffixDecodingCache(max_cached_requests=1) as cache:
        wrote(cache, "a", SQL)

        def full(self: object, **criteria: object) -> None:
            raise StoreFullError("no space left")

        with monkeypatch.context() as broken:
            broken.setattr(Namespace, "delete", full)
            for attempt in (
                lambda: cache.evict_cached_response("a"),
                lambda: cache.start_request("a", PROMPT),
                lambda: cache.start_request("b", PROMPT),
            ):
                with pytest.raises(StoreFullError):
                    attempt()
                assert (list(cache.active_requests), list(cache.cached_requests)) == ([], ["a"])
        wrote(cache, "b", SQL[5:])
        assert list(cache.cached_requests) == ["b"]


def test_a_late_stop_does_not_end_the_next_request_of_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    with SuffixDecodingCache() as cache:
        cache.start_request("a", PROMPT)
        cache.add_active_response("a", SQL)
        close = Session.close

        def slow(self: Session, *args: Any, **more: Any) -> int | None:
            found = close(self, *args, **more)
            monkeypatch.setattr(Session, "close", close)
            cache.stop_request("a")  # another thread's
            cache.start_request("a", PROMPT)
            return found

        monkeypatch.setattr(Session, "close", slow)
        cache.stop_request("a")
        cache.add_active_response("a", SQL[:9])
        assert list(cache.active_requests) == ["a"]
        cache.stop_request("a")
        assert drafted(cache, [9], SQL[:5])[:3] == SQL[5:8]


@pytest.mark.parametrize("folder", [False, True])
def test_threads_that_do_everything_at_once(tmp_path: Path, folder: bool) -> None:
    """Only calls in the wrong state are rejected, and in the end log, index and requests agree."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    others: list[BaseException] = []
    with (
        SuffixCache(tmp_path / "d" if folder else None) as engine,
        SuffixDecodingCache(24, 5, cache=engine) as cache,
    ):

        def work(n: int) -> None:
            rng = random.Random(seed + n)
            for _ in range(400):
                i, text = rng.randrange(8), [rng.randrange(6) for _ in range(rng.randrange(1, 12))]
                act = rng.choice(
                    [
                        lambda i=i, text=text: cache.start_request(i, text),
                        lambda i=i, text=text: cache.add_active_response(i, text),
                        lambda i=i, text=text: cache.add_active_response(i, text[0]),
                        lambda i=i, text=text: cache.speculate(i, text, 8, 2.0),
                        lambda i=i: cache.stop_request(i),
                        lambda i=i: cache.evict_cached_response(i),
                    ]
                )
                try:
                    act()
                except ValueError:
                    pass  # in the wrong state
                except BaseException as error:
                    others.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert others == []
        for i in list(cache.active_requests):
            cache.stop_request(i)
        engine.check()
        assert engine.stats().outputs == sum(output is not None for output in cache._cached.values())
        for i in list(cache.cached_requests):
            cache.evict_cached_response(i)
        stats = engine.stats()
        assert (stats.outputs, stats.tokens, stats.held_bytes, stats.index_nodes) == (0, 0, 0, 1)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: SuffixDecodingCache(max_tree_depth=0), InvalidConfigError),
        (lambda: SuffixDecodingCache(max_tree_depth=True), InvalidConfigError),
        (lambda: SuffixDecodingCache(max_cached_requests=-2), InvalidConfigError),
        (lambda: SuffixDecodingCache(max_cached_requests=1.5), InvalidConfigError),  # type: ignore[arg-type] # on purpose
        (lambda: SuffixDecodingCache(verify_cost=math.nan), InvalidCostError),
    ],
)
def test_invalid_settings(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        make()
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_spec_tokens": -1},
        {"max_spec_tokens": 2.5},
        {"max_spec_factor": math.nan},
        {"max_spec_factor": math.inf},
        {"max_spec_offset": "much"},
        {"max_spec_factor": "1"},
        {"min_token_prob": True},
        {"min_token_prob": None},
        {"context": [-1]},
        {"context": np.array([7, -1], np.int32)},
        {"max_spec_factor": np.array([1.0, 2.0])},
        {"context": [2**31]},
        {"context": "text"},
        {"context": [[1]]},
    ],
)
def test_invalid_arguments(arguments: dict[str, Any]) -> None:
    with SuffixDecodingCache() as cache:
        cache.start_request("a", PROMPT)
        with pytest.raises(InvalidInputError):
            cache.speculate("a", **{"context": PROMPT, **arguments})


def test_bad_tokens_change_nothing() -> None:
    with SuffixDecodingCache() as cache:
        wrote(cache, "a", SQL)
        with pytest.raises(InvalidTokensError):
            cache.start_request("a", [-1])
        assert (list(cache.active_requests), list(cache.cached_requests)) == ([], ["a"])
        cache.start_request("b", PROMPT)
        for bad in (-1, True, 2**31, [1, -5], [0.5], np.array([[1]])):
            with pytest.raises(InvalidTokensError):
                cache.add_active_response("b", bad)  # type: ignore[arg-type] # on purpose
        cache.add_active_response("b", [])
        assert drafted(cache, [9], SQL[:8])[:3] == SQL[8:11]


def test_nothing_to_match_and_nothing_asked_for() -> None:
    with SuffixDecodingCache() as cache:
        wrote(cache, "a", SQL)
        cache.start_request("b", SQL[:8])
        assert cache.speculate("b", []) == SuffixDecodingDraft()
        assert cache.speculate("b", SQL[:8], max_spec_tokens=0) == SuffixDecodingDraft()
        assert cache.speculate("b", SQL[:8], min_token_prob=1.1) == SuffixDecodingDraft()

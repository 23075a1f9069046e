"""The limit of the whole cache with many concurrent sessions, and with sessions of deleted namespaces."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from limits_testing import add, ids, index_is_log

from suffixsvc import Limits, SuffixCache
from suffixsvc.access.caller import OPERATOR_CALLER
from suffixsvc.engine import Namespace, Session
from suffixsvc.engine.limits.size_estimates import predicted_session_bytes
from suffixsvc.errors import LimitExceededError
from suffixsvc.index.session import UNMEASURED_TOKENS
from suffixsvc.service.handlers import Handlers
from suffixsvc.types import TokenArray
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import types_pb2

WHOLE = 16 << 20
PATIENCE = 300.0  #: seconds
LARGE = 60_000  #: tokens; four or five times as many fit, as context
THREADS = 16


def tokens(seed: int, count: int) -> TokenArray:
    return np.random.default_rng(seed).integers(0, 150_000, count).astype(np.int32)


def admitted_at_once(calls: list[Callable[[], object]]) -> int:
    """Run every call in a separate thread, all from the same moment on; returns how many were admitted."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> bool:
        start.wait(PATIENCE)
        try:
            call()
        except LimitExceededError:
            return False
        return True

    with ThreadPoolExecutor(len(calls)) as pool:
        return sum(pool.map(run, calls))


@pytest.fixture
def often_switched() -> Iterator[None]:
    """Threads are switched at nearly every step of the interpreter."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


GROW: dict[str, Callable[[Session, TokenArray], object]] = {
    "append_context": lambda session, text: session.append_context(text),
    "step": lambda session, text: session.step(text, 0),
}


@pytest.mark.parametrize("grow", GROW.values(), ids=GROW)
def test_sessions_that_grow_at_once_see_each_other(grow: Callable[[Session, TokenArray], object]) -> None:
    """Regression: admitted bytes stopped counting before the tokens were in the index, so that concurrent
    growth was not limited: 16 sessions appended 60,000 tokens each where four fitted, and took three times
    the limit."""
    with SuffixCache(limits=Limits(max_cache_bytes=WHOLE)) as cache:
        sessions = [cache.namespace(f"n{i}").open_session([1, 2, 3]) for i in range(THREADS)]
        texts = [tokens(i, LARGE) for i in range(THREADS)]
        admitted = admitted_at_once([partial(grow, s, t) for s, t in zip(sessions, texts, strict=True)])
        assert cache.stats().session_bytes <= WHOLE
        assert 1 <= admitted <= 5
        assert sum(session.length == 3 for session in sessions) == THREADS - admitted
        # Their reservations are released: the remaining sessions can use the memory of those that close.
        for session in sessions:
            session.close(commit=False)
        again = cache.namespace("again").open_session([1, 2, 3])
        for seed in range(3):
            again.append_context(tokens(seed, LARGE))
        again.close(commit=False)
        assert cache.stats().session_bytes == 0


def test_steps_of_one_message_see_each_other() -> None:
    """Regression: the steps of a message are planned one after the other and taken together: each of them was
    admitted as if it were the only one."""
    limits = Limits(max_cache_bytes=WHOLE, max_message_bytes=THREADS * (LARGE + 100) * 4)
    with SuffixCache(limits=limits) as cache:
        handlers = Handlers(cache, limits, durable=False)
        items = [
            pb.StepRequest(
                session_id=handlers.open_session(
                    pb.OpenSessionRequest(namespace=f"n{i}"), OPERATOR_CALLER
                ).session_id,
                new_token_ids=tokens(i, LARGE).tobytes(),
            )
            for i in range(THREADS)
        ]
        reply = handlers.message(pb.StreamRequest(id=1, steps=pb.StepBatch(items=items)), OPERATOR_CALLER)
        taken = [item.HasField("reply") for item in reply.steps.items]
        refused = [item.error.error.code for item in reply.steps.items if item.HasField("error")]
        assert sum(taken) == 2, "a token of output is predicted to take twice what one of context takes"
        assert set(refused) == {types_pb2.ERROR_CODE_LIMIT_EXCEEDED}
        assert cache.stats().session_bytes <= WHOLE


@pytest.mark.usefixtures("often_switched")
def test_sessions_that_are_opened_at_once_see_each_other() -> None:
    """Regression: the bytes of the live sessions were summed before the lock was taken under which the sum
    was used: a session that was opened in between was in neither the sum nor the reservations."""
    with SuffixCache(limits=Limits(max_cache_bytes=WHOLE)) as cache:
        namespaces = [cache.namespace(f"n{i}") for i in range(THREADS)]
        prompts = [tokens(i, 30_000) for i in range(THREADS)]
        others = [cache.namespace(f"others/{i}") for i in range(2000)]  # summing over all takes a while
        opened: list[Session] = []

        def open_one(namespace: Namespace, prompt: TokenArray) -> None:
            opened.append(namespace.open_session(prompt))

        for _ in range(4):
            admitted = admitted_at_once(
                [partial(open_one, n, p) for n, p in zip(namespaces, prompts, strict=True)]
            )
            assert cache.stats().session_bytes <= WHOLE
            assert 1 <= admitted < THREADS
            while opened:
                opened.pop().close(commit=False)
        assert cache.stats().namespaces == len(namespaces) + len(others)


def test_sessions_of_a_deleted_namespace_count() -> None:
    """Regression: the live sessions of a namespace that was deleted by force did not count: with each
    deletion the cache admitted as many more sessions as the limit allows."""
    with SuffixCache(limits=Limits(max_cache_bytes=WHOLE)) as cache:
        live: list[Session] = []
        refused = 0
        for seed in range(8):
            try:
                live.append(cache.namespace("a").open_session(tokens(seed, 100_000)))
            except LimitExceededError:
                refused += 1
                continue
            cache.delete_namespace("a", force=True)
            with contextlib.suppress(LimitExceededError):
                live[-1].append_context(tokens(100 + seed, 100_000))
            stats = cache.stats()
            assert stats.session_bytes <= WHOLE
            assert stats.session_bytes >= sum(session.length for session in live) * 20
            assert stats.sessions == len(live)
        assert refused >= 4
        for session in live:
            session.step(tokens(1, 10), 0)
            assert session.close() is None
        assert cache.stats().session_bytes == 0
        del session, live
        gc.collect()
        cache.namespace("a").open_session(tokens(1, 200_000)).close(commit=False)


def test_decode_steps_go_on_for_some_time_in_a_full_cache_and_much_text_does_not() -> None:
    """Regression: steps of up to 1024 tokens, and later decode steps, were never rejected: sessions that went
    on stepping took any multiple of the limit, and then opens and closes of all others were rejected."""
    limits = Limits(max_cache_bytes=4 << 20)
    with SuffixCache(limits=limits) as cache:
        full = 0
        while cache.stats().evicted_outputs == 0:
            add(cache, "full", range(full, full + 10))
            full += 10
        sessions = []
        with contextlib.suppress(LimitExceededError):
            for seed in range(1000):
                sessions.append(cache.namespace(f"n{seed}").open_session(tokens(seed, 500)))
        assert len(sessions) > 4
        before = cache.stats().session_bytes
        for seed, session in enumerate(sessions):
            for _ in range(4):
                with pytest.raises(LimitExceededError, match="do not fit in memory"):
                    session.step(tokens(seed, UNMEASURED_TOKENS + 1), 8)
        assert cache.stats().session_bytes == before
        step = limits.max_draft_tokens // 8
        for seed, session in enumerate(sessions):
            for first in range(0, UNMEASURED_TOKENS, step):
                assert session.step(tokens(seed, 500)[:step], 8, 0.0) or not first, "drafting goes on"
            for _ in range(20):
                with pytest.raises(LimitExceededError, match="do not fit in memory"):
                    session.step([1], 8)
            assert session.length == 500 + UNMEASURED_TOKENS
        grown = cache.stats().session_bytes - before
        assert grown < 1.2 * predicted_session_bytes(0, len(sessions) * UNMEASURED_TOKENS)
        while len(sessions) > 3:
            sessions.pop().close(commit=False)
        assert sessions[0].step(tokens(0, 500)[:step], 8, 0.0), "there is room again"
        assert ids(cache, "full"), "one namespace never evicts another's"
        for session in sessions:
            session.close(commit=False)
        index_is_log(cache)

"""Live sessions count: outputs of their namespace are evicted for them, then new ones are rejected, and
existing ones go on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest
from limits_testing import add, ids, index_is_log, text

from suffixsvc import Limits, SuffixCache
from suffixsvc.access.caller import OPERATOR_CALLER
from suffixsvc.errors import LimitExceededError
from suffixsvc.service.handlers import Handlers
from suffixsvc.types import TokenArray
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import types_pb2

WHOLE = 4 << 20
PROMPT = 12_000


def tokens(seed: int, count: int) -> TokenArray:
    return np.random.default_rng(seed).integers(0, 150_000, count).astype(np.int32)


@pytest.fixture
def cache() -> Iterator[SuffixCache]:
    with SuffixCache(limits=Limits(max_cache_bytes=WHOLE)) as opened:
        yield opened
        index_is_log(opened)


def test_live_sessions_are_counted(cache: SuffixCache) -> None:
    """Regression: a prompt of 4 MB took 50 MB that were in no statistics and under no limit."""
    namespace = cache.namespace("a")
    assert cache.stats().session_bytes == 0
    session = namespace.open_session(tokens(1, PROMPT))
    before = namespace.stats().session_bytes
    assert before > WHOLE // 16
    session.step(tokens(2, 1000), 0)
    assert namespace.stats().session_bytes > before
    assert cache.stats().session_bytes == namespace.stats().session_bytes
    session.close(commit=False)
    assert cache.stats().session_bytes == 0


def test_what_does_not_fit_is_refused_and_live_sessions_go_on(cache: SuffixCache) -> None:
    namespace = cache.namespace("a")
    live = []
    refused: LimitExceededError | None = None
    while refused is None:
        try:
            live.append(namespace.open_session(tokens(len(live), PROMPT)))
        except LimitExceededError as error:
            refused = error
    assert 2 < len(live) < 100
    assert f"{PROMPT} tokens of a session in namespace a" in str(refused)
    assert "Limits.max_cache_bytes" in str(refused.expected)
    assert "raise the limit" in str(refused.remedy)
    assert cache.stats().session_bytes <= WHOLE
    assert cache.stats().sessions == len(live)
    for seed, session in enumerate(live):
        own = tokens(seed, PROMPT)
        assert session.step(own[1000:1016], 8, 0.0).token_ids[0] == own[1016], "drafting goes on"
        with pytest.raises(LimitExceededError):
            session.append_context(own)
        with pytest.raises(LimitExceededError):
            session.step(own, 8)
        assert session.length == PROMPT + 16, "nothing was appended"
    for session in live:
        session.close(commit=False)
    namespace.open_session(tokens(1, PROMPT)).close(commit=False)


def test_an_eighth_of_the_limit_is_there_for_sessions_however_many_outputs_there_are(
    cache: SuffixCache,
) -> None:
    """Regression: the eighth was in addition to the limit, so that the cache could take nine eighths."""
    while cache.stats().evicted_outputs == 0:
        add(cache, "full", range(cache.stats().last_lsn, cache.stats().last_lsn + 10))
    kept = ids(cache, "full")
    session = cache.namespace("other").open_session(tokens(1, 2500))
    assert ids(cache, "full") == kept
    stats = cache.stats()
    assert stats.held_bytes + stats.session_bytes <= WHOLE
    session.close(commit=False)


def test_a_namespace_forgets_its_own_outputs_for_its_sessions(cache: SuffixCache) -> None:
    while cache.stats().evicted_outputs == 0:
        add(cache, "full", range(cache.stats().last_lsn, cache.stats().last_lsn + 10))
    kept = ids(cache, "full")
    with pytest.raises(LimitExceededError, match="0 of them evictable in this namespace"):
        cache.namespace("other").open_session(tokens(1, 2 * PROMPT))
    assert ids(cache, "full") == kept, "one namespace never evicts another's"
    session = cache.namespace("full").open_session(tokens(1, 2 * PROMPT))
    left = ids(cache, "full")
    assert left == kept[-len(left) :]
    assert 0 < len(left) < len(kept)
    stats = cache.stats()
    assert stats.held_bytes + stats.session_bytes <= WHOLE
    session.close(commit=False)


def test_writes_leave_room_for_the_sessions_that_are_there(cache: SuffixCache) -> None:
    session = cache.namespace("a").open_session(tokens(1, 2 * PROMPT))
    taken = cache.stats().session_bytes
    assert taken > WHOLE // 5
    held = []
    for first in range(0, 600, 10):
        add(cache, "full", range(first, first + 10))
        held.append(cache.stats().held_bytes)
    # a write evicts at most twice its size, so that one can exceed the limit as the index grows
    assert min(held[-10:]) + taken <= WHOLE
    assert cache.stats().evicted_outputs > 100
    session.step(text(7), 0)
    assert session.close() is not None


def test_large_steps_of_a_service_are_refused_small_ones_never() -> None:
    """The core takes decode steps itself; it passes larger ones to the Python handlers, which enforce
    limits."""
    limits = Limits(max_cache_bytes=WHOLE)
    with SuffixCache(limits=limits) as cache:
        handlers = Handlers(cache, limits, durable=False)
        for length in (PROMPT, 300):
            prompt = tokens(1, length).tobytes()
            with contextlib.suppress(LimitExceededError):
                for _ in range(1000):
                    request = pb.OpenSessionRequest(namespace="a", prompt_token_ids=prompt)
                    session_id = handlers.open_session(request, OPERATOR_CALLER).session_id
        assert 2 < len(handlers.sessions.table) < 1000

        def step(count: int) -> pb.StepItem:
            new = pb.StepRequest(session_id=session_id, new_token_ids=tokens(2, count).tobytes())
            reply = handlers.message(pb.StreamRequest(id=1, steps=pb.StepBatch(items=[new])), OPERATOR_CALLER)
            return reply.steps.items[0]

        assert step(limits.max_draft_tokens + 1).HasField("reply")
        for count in (limits.max_draft_tokens + 2, PROMPT):
            refused = step(count).error.error
            assert refused.code == types_pb2.ERROR_CODE_LIMIT_EXCEEDED, refused
        assert step(16).HasField("reply")

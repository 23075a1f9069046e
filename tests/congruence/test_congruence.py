"""The same tests on the embedded engine and on both clients, which must behave alike.

Every test runs on the embedded engine, on the blocking and on the asyncio client over a unix socket, and on
the blocking client over TCP. The clients use a real server in the same process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from suffixsvc import Deletion, Draft, DraftSource, Limits, SuffixCache, Verified
from suffixsvc.errors import (
    AppendConflict,
    AppendGap,
    InvalidCostError,
    InvalidInputError,
    InvalidLabelsError,
    InvalidNamespaceError,
    InvalidTokensError,
    LimitExceededError,
    NamespaceInUseError,
    SessionClosedError,
    SuffixError,
    TokenizerMismatchError,
    UnknownNamespaceError,
)
from suffixsvc.types import Backend, BackendSession, NewOutput
from suffixsvc_client import AsyncSuffixClient, ClientConfig, SuffixClient
from support.serving import Blocking, event_loop, serving, socket_dir

#: long timeouts: these tests are not about latency
PATIENT = ClientConfig(step_timeout_s=300, open_timeout_s=300)
LIMITS = Limits(max_session_tokens=2000, max_sessions=4, max_output_tokens=500)
WORDS = [11, 12, 13, 14, 15, 16, 17, 18]
WAYS = ["embedded", "unix", "aio", "tcp"]


@pytest.fixture(params=WAYS)
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    with SuffixCache(limits=LIMITS) as cache, socket_dir() as folder:
        if request.param == "embedded":
            yield cache
            return
        address = "127.0.0.1:0" if request.param == "tcp" else f"unix:{folder}/s.sock"
        with serving(cache, address, LIMITS) as (_, target):
            if request.param == "aio":
                with event_loop() as loop:
                    client = Blocking(AsyncSuffixClient(target, PATIENT), loop)
                    yield client
                    client.close()
            else:
                with SuffixClient(target, PATIENT) as client:
                    yield client


def write(namespace: Any, tokens: list[int], prompt: list[int] | None = None) -> int:
    session = namespace.open_session(prompt or [1, 2, 3])
    session.step(tokens, max_draft_tokens=0)
    output_id: int = session.close()
    return output_id


def transcript(backend: Any) -> list[Draft]:
    """Drafts of a fixed sequence of calls that covers everything that affects a draft."""
    namespace = backend.namespace("acme/sql", tokenizer="xxh3:1")
    for _ in range(3):
        write(namespace, WORDS * 3)
    session = namespace.open_session([1, 2, 3, 11, 12], output_token_ids=[13, 14], labels={"agent": "a"})
    drafts = [session.step([15])]
    drafts.append(session.step([16, 17], verify_cost=[0, 1, 1.25, 1.5, 3, 3.25, 3.5], max_draft_tokens=5))
    drafts.append(session.step([18, 11], verified=Verified(3, 1, DraftSource.NAMESPACE)))
    session.append_context([7, 7, 7])
    drafts.append(session.step([11, 12], tree="auto", verify_cost=0.5))
    drafts.append(session.step([12, 13], at=session.length - 1, tree=True, verify_cost=0))
    drafts.append(session.step([], max_draft_tokens=3))
    session.close(commit=False)
    return drafts


def test_same_events_same_drafts(backend: Any) -> None:
    with SuffixCache(limits=LIMITS) as reference:
        expected = transcript(reference)
    got = transcript(backend)
    assert sum(map(len, expected)) > 10, "the course of events drafts too little to compare anything"
    for mine, theirs in zip(got, expected, strict=True):
        for name in ("token_ids", "parents", "probs", "sources", "match_lens"):
            a, b = getattr(mine, name), getattr(theirs, name)
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b, err_msg=name)


def test_backends_fulfil_the_protocol(backend: Any) -> None:
    if not isinstance(backend, Blocking):
        assert isinstance(backend, Backend)
        assert isinstance(backend.namespace("a").open_session([1]), BackendSession)


def test_siblings_see_live_output_and_lose_it_when_it_is_discarded(backend: Any) -> None:
    namespace = backend.namespace("a/live")
    writer, reader = namespace.open_session([1]), namespace.open_session([2])
    writer.step(WORDS * 4)
    assert len(reader.step(WORDS[:4])) > 0
    assert writer.close(commit=False) is None
    other = namespace.open_session([3])
    assert len(other.step([13, 14], max_draft_tokens=4)) in (0, 4)  # the four tokens of the reader remain
    assert 18 not in other.step([15, 16, 17]).token_ids


def test_close_gives_the_output_id_and_a_second_close_the_same(backend: Any) -> None:
    session = backend.namespace("a").open_session([1])
    session.step(WORDS)
    output_id = session.close()
    assert output_id is not None
    assert session.closed
    assert session.close() == output_id


@pytest.mark.parametrize("commit", [True, False])
def test_nothing_written_nothing_kept(backend: Any, commit: bool) -> None:
    namespace = backend.namespace("a")
    session = namespace.open_session([1, 2])
    assert session.close(commit=commit) is None
    session = namespace.open_session([1, 2])
    session.append_context([5])
    assert session.close() is None
    del session
    with contextlib.suppress(UnknownNamespaceError):  # a service does not keep an empty namespace
        assert namespace.stats().outputs == 0


def test_steps_after_close_are_refused(backend: Any) -> None:
    session = backend.namespace("a").open_session([1])
    session.close()
    with pytest.raises(SessionClosedError):
        session.step([1])
    with pytest.raises(SessionClosedError):
        session.append_context([1])


BAD_STEPS: list[tuple[dict[str, Any], type[SuffixError]]] = [
    ({"new_token_ids": [1, -1]}, InvalidTokensError),
    ({"new_token_ids": [2**31]}, InvalidTokensError),
    ({"new_token_ids": [1.5]}, InvalidTokensError),
    ({"new_token_ids": [[1], [2]]}, InvalidTokensError),
    ({"new_token_ids": "text"}, InvalidTokensError),
    ({"new_token_ids": np.zeros((2, 2), np.int32)}, InvalidTokensError),
    ({"new_token_ids": [1], "verify_cost": float("nan")}, InvalidCostError),
    ({"new_token_ids": [1], "verify_cost": -0.1}, InvalidCostError),
    ({"new_token_ids": [1], "verify_cost": float("inf")}, InvalidCostError),
    ({"new_token_ids": [1], "verify_cost": []}, InvalidCostError),
    ({"new_token_ids": [1], "verify_cost": [0, 1, float("nan")]}, InvalidCostError),
    ({"new_token_ids": [1], "verify_cost": "dear"}, InvalidCostError),
    ({"new_token_ids": [1], "max_draft_tokens": -1}, InvalidInputError),
    ({"new_token_ids": [1], "max_draft_tokens": 1.0}, InvalidInputError),
    ({"new_token_ids": [1], "tree": "maybe"}, InvalidInputError),
    ({"new_token_ids": [1], "at": -1}, InvalidInputError),
    ({"new_token_ids": [1], "verified": (0, 0, 0)}, InvalidInputError),
    ({"new_token_ids": [1], "verified": (2, 2, 0)}, InvalidInputError),
    ({"new_token_ids": [1], "verified": (2, 1, 99)}, InvalidInputError),
]


@pytest.mark.parametrize(("arguments", "error"), BAD_STEPS, ids=lambda value: str(value)[:50])
def test_bad_steps_raise_and_change_nothing(backend: Any, arguments: Any, error: type[SuffixError]) -> None:
    session = backend.namespace("a").open_session([1, 2, 3])
    session.step(WORDS)
    with pytest.raises(error) as caught:
        session.step(**arguments)
    assert caught.value.expected is not None or " must be " in caught.value.message
    assert caught.value.got is not None
    assert session.length == 3 + len(WORDS)
    session.step([19])
    assert session.length == 4 + len(WORDS)


def test_appends_say_where_they_start(backend: Any) -> None:
    session = backend.namespace("a").open_session([1, 2, 3])
    session.step([11, 12], at=3)
    session.step([12, 13], at=4)  # 12 overlaps, 13 is new
    assert session.length == 6
    session.step([11, 12, 13], at=3)  # a complete overlap changes nothing
    assert session.length == 6
    with pytest.raises(AppendConflict) as conflict:
        session.step([12, 99, 14], at=4)
    assert conflict.value.position == 5
    assert (conflict.value.expected, conflict.value.got) == ("token 13", "token 99")
    with pytest.raises(AppendGap) as gap:
        session.step([20], at=8)
    assert (gap.value.expected_position, gap.value.got_position) == (6, 8)
    assert session.length == 6


@pytest.mark.parametrize(
    ("labels", "error"),
    [
        ({"agent": 1}, InvalidLabelsError),
        ({"": "x"}, InvalidLabelsError),
        ({"agent": "\ud800"}, InvalidLabelsError),
        ([], InvalidLabelsError),
    ],
)
def test_bad_labels(backend: Any, labels: Any, error: type[SuffixError]) -> None:
    with pytest.raises(error):
        backend.namespace("a").open_session([1], labels=labels)


@pytest.mark.parametrize("path", ["", "/", "a//b", "a b", "x" * 201, 7, "a/\ud800"])
def test_bad_namespaces(backend: Any, path: Any) -> None:
    with pytest.raises(InvalidNamespaceError):
        backend.namespace(path)


def test_a_foreign_tokenizer_is_refused(backend: Any) -> None:
    write(backend.namespace("a", tokenizer="xxh3:aa"), WORDS)
    with pytest.raises(TokenizerMismatchError) as caught:
        backend.namespace("a", tokenizer="xxh3:bb").open_session([1])
    assert "xxh3:aa" in str(caught.value)
    assert "xxh3:bb" in str(caught.value)


def test_reads_draft_from_elsewhere_and_must_exist(backend: Any) -> None:
    write(backend.namespace("shared"), WORDS * 4)
    own = backend.namespace("own")
    assert len(own.open_session([1]).step(WORDS[:4])) == 0
    assert len(own.open_session([1], reads=["shared"]).step(WORDS[:4])) > 0
    with pytest.raises(UnknownNamespaceError):
        own.open_session([1], reads=["nowhere"])


def test_limits(backend: Any) -> None:
    namespace = backend.namespace("a")
    with pytest.raises(LimitExceededError):
        namespace.open_session(np.zeros(LIMITS.max_session_tokens + 1, np.int32))
    sessions = [namespace.open_session([1]) for _ in range(LIMITS.max_sessions)]
    with pytest.raises(LimitExceededError):
        namespace.open_session([1])
    sessions[0].close()
    namespace.open_session([1])


def test_bulk_outputs_stats_and_forgetting(backend: Any) -> None:
    namespace = backend.namespace("bulk", tokenizer="xxh3:1")
    first = namespace.add_output(WORDS * 4, prompt_token_ids=[1, 2], labels={"agent": "x"})
    tail = np.array([9], np.int32)
    more = [
        NewOutput("bulk", np.array(WORDS, np.int32), (4, 4), tail),
        NewOutput("bulk", np.array(WORDS * 2, np.int32), (16,), tail, {"agent": "y"}, ttl_seconds=60),
    ]
    ids = namespace.add_outputs(more)
    assert len({first, *ids}) == 3
    stats = namespace.stats()
    assert (stats.outputs, stats.tokens) == (3, len(WORDS) * 7)
    assert backend.stats().outputs == 3
    assert namespace.delete(output_ids=[first]) == Deletion(1, 0, ("bulk",))
    assert namespace.stats().outputs == 2
    assert namespace.delete(output_ids=[first]) == Deletion()
    assert namespace.delete(labels={"agent": "y"}).outputs == 1
    assert namespace.delete().outputs == 1
    with pytest.raises(InvalidInputError, match="output_ids"):
        namespace.delete(output_ids=[])
    assert [(r.path, r.tokenizer) for r in backend.namespaces()] == [("bulk", "xxh3:1")]


def test_bad_bulk_keeps_nothing(backend: Any) -> None:
    namespace = backend.namespace("bulk")
    namespace.add_output(WORDS)
    good = NewOutput("bulk", np.array(WORDS, np.int32), (8,), np.empty(0, np.int32))
    empty = NewOutput("bulk", np.empty(0, np.int32), (), np.empty(0, np.int32))
    foreign = NewOutput("other", np.array(WORDS, np.int32), (8,), np.empty(0, np.int32))
    long = NewOutput("bulk", np.zeros(501, np.int32), (501,), np.empty(0, np.int32))
    for bad, error in (
        (empty, InvalidTokensError),
        (foreign, UnknownNamespaceError),
        (long, LimitExceededError),
    ):
        with pytest.raises(error):
            namespace.add_outputs([good, bad])
    with pytest.raises(InvalidTokensError):
        namespace.add_output([])
    assert namespace.stats().outputs == 1


def test_resuming_keeps_output_apart_from_prompt(backend: Any) -> None:
    namespace = backend.namespace("a")
    session = namespace.open_session([1, 2, 3], output_token_ids=WORDS)
    assert session.length == 3 + len(WORDS)
    session.close()
    assert namespace.stats().tokens == len(WORDS)


def test_a_deleted_namespace_is_gone(backend: Any) -> None:
    backend.namespace("a", "old").add_output([1, 2, 3])
    live = backend.namespace("a").open_session([1])
    live.step([5])
    with pytest.raises(NamespaceInUseError):
        backend.delete_namespace("a")
    assert backend.delete_namespace("a", force=True) == 1
    assert [record.path for record in backend.namespaces()] == []
    assert live.close() is None
    del live
    with pytest.raises(UnknownNamespaceError):
        backend.delete_namespace("a")
    backend.namespace("a", "new").add_output([4])
    assert [(record.path, record.tokenizer) for record in backend.namespaces()] == [("a", "new")]

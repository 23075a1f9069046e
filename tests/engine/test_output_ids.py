"""Ids of outputs: an output that is sent twice is once in the log and once in the index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from suffixsvc import SuffixCache
from suffixsvc.index.session_output import continues, output_uuid
from suffixsvc.types import NewOutput, TokenArray

NS = "acme/m"
Reopen = Callable[[], SuffixCache]


@pytest.fixture
def reopen(tmp_path: Path) -> Iterator[Reopen]:
    """Close the open cache and open the folder again; checked at the end."""
    opened: list[SuffixCache] = []

    def again() -> SuffixCache:
        if opened:
            opened[-1].check()
            opened[-1].close()
        opened.append(SuffixCache(tmp_path / "data", background=False))
        return opened[-1]

    yield again
    opened[-1].check()
    opened[-1].close()


def run(cache: SuffixCache, *, context: bool, wait: bool = True, incomplete: bool = False) -> int | None:
    """A generation of the session "mine", always the same."""
    session = cache.namespace(NS).open_session([1, 2, 3])
    session.step(list(range(100, 130)), max_draft_tokens=0)
    if context:
        session.append_context([7, 8, 9])
        session.step(list(range(200, 230)), max_draft_tokens=0)
    return session.close(session_id="mine", wait=wait, incomplete=incomplete)


@pytest.mark.parametrize("context", [False, True])
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("wait", [False, True])
def test_a_close_that_is_repeated_is_kept_once(
    reopen: Reopen, context: bool, restart: bool, wait: bool
) -> None:
    """Regression: the service ended after the commit and before its reply; the client resumed its session and
    closed it again: the output was in the log twice."""
    cache = reopen()
    first = run(cache, context=context)
    before = cache.stats()
    if restart:
        cache = reopen()
    again = run(cache, context=context, wait=wait)
    if wait:
        assert again == first
    cache.check()  # waits for commits in flight
    after = cache.stats()
    assert (after.outputs, after.tokens) == (before.outputs, before.tokens) == (1, 60 if context else 30)
    assert first is not None
    cache.namespace(NS).delete(output_ids=[first])
    cache.check()
    assert cache.stats().outputs == 0
    session = cache.namespace(NS).open_session([1, 2, 3])
    draft = session.step(list(range(100, 110)), max_draft_tokens=8, verify_cost=0.0)
    assert not len(draft), "what was forgotten is drafted from"


def test_an_incomplete_output_is_another_one(reopen: Reopen) -> None:
    cache = reopen()
    left = run(cache, context=True, incomplete=True)
    whole = run(cache, context=True)
    assert left != whole
    assert [each.output_id for each in cache.incomplete_outputs("mine")] == [left]
    assert cache.stats().outputs == 2


def test_a_bulk_load_that_is_repeated_is_kept_once(reopen: Reopen) -> None:
    cache = reopen()
    outputs = [
        NewOutput(
            namespace=NS,
            token_ids=np.arange(n, n + 20, dtype=np.int32),
            segment_lens=(20,),
            prompt_tail=np.empty(0, np.int32),
            uuid=n.to_bytes(16, "big"),
        )
        for n in range(1, 1201)
    ]
    namespace = cache.namespace(NS)
    first = namespace.add_outputs(outputs[:500])
    cache = reopen()
    namespace = cache.namespace(NS)
    assert namespace.add_outputs(outputs)[:500] == first
    assert cache.stats().outputs == 1200
    cache.check()
    assert namespace.delete().outputs == 1200
    cache.check()


def tokens(*ids: int) -> TokenArray:
    return np.asarray(ids, dtype=np.int32)


def test_who_continues_what() -> None:
    text = tokens(1, 2, 3, 100, 101)
    uuid = output_uuid("mine", NS, text, 3, incomplete=True)
    assert len(uuid) == 16
    longer = tokens(1, 2, 3, 100, 101, 102)
    for other in (text, longer):
        assert continues(uuid, "mine", NS, other, 3)
    for session_id, namespace, other, first in (
        ("yours", NS, longer, 3),
        ("mine", "acme/n", longer, 3),
        ("mine", NS, tokens(1, 2, 3, 100, 5, 102), 3),
        ("mine", NS, text[:4], 3),
        ("mine", NS, longer, 5),  # the next turn, whose prompt is the output
    ):
        assert not continues(uuid, session_id, namespace, other, first)
    whole = output_uuid("mine", NS, text, 3, incomplete=False)
    assert not continues(whole, "mine", NS, longer, 3)
    assert not continues(b"", "mine", NS, longer, 3)
    assert not continues(bytes(16), "mine", NS, longer, 0)

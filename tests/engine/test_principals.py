"""Principals of outputs: written by sessions and bulk loads, read back after seal, merge and restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffixsvc import NewOutput, SuffixCache
from suffixsvc.errors import InvalidInputError

PATH = "acme/m"


def rows(cache: SuffixCache) -> dict[int, tuple[str, str]]:
    """(principal, session id) of every output in the log."""
    return {s.output_id: (s.output.principal, s.output.session_id) for s in cache._parts.store.scan(PATH)}


def write(cache: SuffixCache, first: int, **more: Any) -> int:
    """Write an output of 20 tokens by a session; returns its id."""
    session = cache.namespace(PATH).open_session([1, 2, 3], **more)
    session.step(list(range(first, first + 20)), max_draft_tokens=0)
    output_id = session.close()
    assert output_id is not None
    return output_id


def test_the_principal_stays_known_across_seal_merge_and_restart(tmp_path: Path) -> None:
    with SuffixCache(tmp_path, background=False) as cache:
        wanted = {write(cache, 100, principal="ann", session_id="s1"): ("ann", "s1")}
        wanted[write(cache, 200)] = ("", "")
        assert cache.seal() == 2
        outputs = [
            NewOutput(PATH, np.arange(n, n + 9, dtype=np.int32), (9,), np.empty(0, np.int32), principal=name)
            for n, name in ((300, "bob"), (400, "ann"))
        ]
        ids = cache.namespace(PATH).add_outputs(outputs)
        wanted |= {ids[0]: ("bob", ""), ids[1]: ("ann", "")}
        wanted[cache.namespace(PATH).add_output([7, 8, 9], principal="ci@acme")] = ("ci@acme", "")
        assert cache.seal() == 3
        assert rows(cache) == wanted
        assert cache.compact() == 1
        assert rows(cache) == wanted
        cache.check()
    with SuffixCache(tmp_path, background=False) as cache:
        assert cache.stats().segments == 1
        assert rows(cache) == wanted
        gone = ids[0]
        cache.namespace(PATH).delete(output_ids=[gone])
        cache.compact()
        del wanted[gone]
        assert rows(cache) == wanted
        cache.check()
    for segment in (tmp_path / "segments").iterdir():
        segment.unlink()  # rebuilt from the log
    with SuffixCache(tmp_path, background=False) as cache:
        assert rows(cache) == wanted
        cache.check()


def test_a_session_keeps_its_principal_over_runs_and_an_incomplete_end(tmp_path: Path) -> None:
    with SuffixCache(tmp_path, background=False) as cache:
        session = cache.namespace(PATH).open_session([1], principal="ann", session_id="s")
        session.step([2, 3], max_draft_tokens=0)
        session.append_context([4])
        session.step([5], max_draft_tokens=0)
        output_id = session.close(incomplete=True)
        assert output_id is not None
        assert rows(cache) == {output_id: ("ann", "s")}
        assert [each.output_id for each in cache.incomplete_outputs("s")] == [output_id]


@pytest.mark.parametrize("name", ["a b", "a" * 129, "ä", 3, None])
def test_a_name_that_is_none_is_refused_before_anything_is_opened(name: Any) -> None:
    with SuffixCache() as cache:
        namespace = cache.namespace(PATH)
        with pytest.raises(InvalidInputError, match="principal must be a name"):
            namespace.open_session([1], principal=name)
        with pytest.raises(InvalidInputError, match="principal must be a name"):
            namespace.add_output([1, 2], principal=name)
        with pytest.raises(InvalidInputError, match="session_id must be"):
            namespace.open_session([1], session_id="x" * 201)
        assert cache.stats().sessions == 0
        assert cache.stats().outputs == 0

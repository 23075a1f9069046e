"""Deletion by selection: outputs, live sessions and learned tables; policies that store nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc import Deletion, NewOutput, Policies, Policy, Selection, SuffixCache
from suffixsvc.access.policy_file import read_policy_file
from suffixsvc.core import new_learner
from suffixsvc.errors import InvalidInputError, NoStoreError, UnknownNamespaceError
from support.engine_parts import index_of, parts_of
from support.long_form import rounds
from support.stored import stored_outputs

Opener = Callable[..., SuffixCache]
TEXT = list(range(500, 540))


@pytest.fixture(params=["disk", "memory"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    caches: list[SuffixCache] = []

    def start(**more: Any) -> SuffixCache:
        path = tmp_path / "data" if request.param == "disk" else None
        caches.append(SuffixCache(path, background=False, **more))
        return caches[-1]

    yield start
    caches[-1].check()
    caches[-1].close()


def output(path: str, first: int, **more: Any) -> NewOutput:
    tokens = np.arange(first, first + 8, dtype=np.int32)
    return NewOutput(path, tokens, (8,), np.empty(0, np.int32), **more)


def drafts(cache: SuffixCache, path: str, text: list[int] = TEXT) -> list[int]:
    """What another session drafts after the first tokens of a text."""
    session = cache.namespace(path).open_session([1])
    found = session.step(text[:10], max_draft_tokens=8).token_ids.tolist()
    session.close(commit=False)
    return [int(token) for token in found]


def ids_of(cache: SuffixCache, path: str) -> list[int]:
    return [stored.output_id for stored in stored_outputs(cache, path)]


# --- which outputs -----------------------------------------------------------------------------------

WRITERS = [
    {"principal": "ann", "labels": {"agent": "sql", "task": "1"}, "session_id": "s1"},
    {"principal": "ann", "labels": {"agent": "code"}, "session_id": "s2"},
    {"principal": "bob", "labels": {"agent": "sql"}, "session_id": "s1"},
    {"principal": "", "labels": {}, "session_id": ""},
]


def filled(cache: SuffixCache) -> dict[str, list[tuple[int, dict[str, Any]]]]:
    """Every writer's outputs in two namespaces; (id, writer) of each."""
    rows: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for path in ("a/x", "b"):
        outputs = [output(path, 10 * n, **writer) for n, writer in enumerate(WRITERS * 2)]
        rows[path] = list(zip(cache.namespace(path).add_outputs(outputs), WRITERS * 2, strict=True))
    return rows


@pytest.mark.parametrize(
    ("criteria", "chosen"),
    [
        ({"principal": "ann"}, {0, 1}),
        ({"principal": ""}, {3}),
        ({"session_id": "s1"}, {0, 2}),
        ({"labels": {"agent": "sql"}}, {0, 2}),
        ({"labels": {"agent": "sql", "task": "1"}}, {0}),
        ({"labels": {"agent": "none"}}, set()),
        ({"principal": "ann", "labels": {"agent": "sql"}}, {0}),
        ({"principal": "eve"}, set()),
        ({"namespace": "a/x"}, {0, 1, 2, 3}),
        ({"namespace": "a/x", "session_id": "s2"}, {1}),
    ],
)
@pytest.mark.parametrize("sealed", [False, True])
def test_a_selection_takes_what_meets_every_criterion(
    opened: Opener, criteria: dict[str, Any], chosen: set[int], sealed: bool
) -> None:
    cache = opened()
    rows = filled(cache)
    if sealed:
        cache.seal()
    paths = [criteria["namespace"]] if "namespace" in criteria else list(rows)
    deletion = cache.delete(Selection(**criteria))
    gone = {
        path: {i for i, writer in rows[path] if WRITERS.index(writer) in chosen and path in paths}
        for path in rows
    }
    assert deletion == Deletion(
        sum(map(len, gone.values())), 0, tuple(sorted(path for path in rows if gone[path]))
    )
    for path in rows:
        assert set(ids_of(cache, path)) == {i for i, _ in rows[path]} - gone[path]
    assert cache.delete(Selection(**criteria)) == Deletion()


def test_ids_of_outputs(opened: Opener) -> None:
    cache = opened()
    rows = filled(cache)
    first, second = rows["a/x"][0][0], rows["b"][3][0]
    assert cache.namespace("a/x").delete(output_ids=[first, second, 10**6]).outputs == 1
    assert cache.delete(Selection(output_ids=[first, second])).namespaces == ("b",)
    assert len(ids_of(cache, "a/x")) == len(ids_of(cache, "b")) == 7
    kept = rows["a/x"][1][0]
    assert cache.delete(Selection(output_ids=[kept], principal="bob")) == Deletion()
    assert cache.delete(Selection(output_ids=np.asarray([kept]), principal="ann")).outputs == 1


def test_age(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = opened()
    clock, now = parts_of(cache).store.clock, parts_of(cache).store.clock.now_us()
    monkeypatch.setattr(clock, "now_us", lambda: now)
    old = cache.namespace("a").add_output([1, 2, 3])
    monkeypatch.setattr(clock, "now_us", lambda: now + 60_000_000)
    new = cache.namespace("a").add_output([4, 5, 6])
    assert cache.delete(Selection(older_than_seconds=60.5)) == Deletion()
    assert cache.delete(Selection(older_than_seconds=60)).outputs == 1
    assert ids_of(cache, "a") == [new] != [old]
    assert cache.namespace("a").delete(older_than_seconds=0).outputs == 1


@pytest.mark.parametrize(
    ("criteria", "what"),
    [
        ({}, "at least one criterion"),
        ({"namespace": "a//b"}, "namespace path"),
        ({"output_ids": []}, "output_ids must hold"),
        ({"output_ids": [0]}, "output_ids must be"),
        ({"output_ids": ["1"]}, "output_ids must be"),
        ({"output_ids": 7}, "output_ids must be a list"),
        ({"session_id": 7}, "session_id"),
        ({"labels": {"": "x"}}, "label names"),
        ({"labels": "x"}, "labels must be"),
        ({"principal": "a b"}, "principal"),
        ({"older_than_seconds": -1}, "older_than_seconds"),
        ({"older_than_seconds": float("nan")}, "older_than_seconds"),
        ({"older_than_seconds": True}, "older_than_seconds"),
    ],
)
def test_a_malformed_selection_is_refused(criteria: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidInputError, match=what):
        Selection(**criteria)


def test_an_unknown_namespace_is_an_error(opened: Opener) -> None:
    cache = opened()
    with pytest.raises(UnknownNamespaceError):
        cache.delete(Selection("nowhere"))
    assert cache.delete(Selection(principal="ann")) == Deletion()


@settings(max_examples=rounds(20, full=60), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from(["", "p", "q"]), st.integers(0, 2)), max_size=9
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "namespace": st.sampled_from("ab"),
            "principal": st.sampled_from(["", "p", "q"]),
            "session_id": st.sampled_from(["0", "1"]),
            "output_ids": st.lists(st.integers(1, 12), min_size=1),
        },
    ),
)
def test_any_selection_is_what_a_filter_takes(
    written: list[tuple[str, str, int]], criteria: dict[str, Any]
) -> None:
    with SuffixCache() as cache:
        for path in "ab":
            parts_of(cache).catalog.store(index_of(cache.namespace(path)))
        rows = {}
        for n, (path, principal, session) in enumerate(written):
            new = output(path, 10 * n, principal=principal, session_id=str(session))
            rows[cache.namespace(path).add_outputs([new])[0]] = (path, principal, str(session))
        if not criteria:
            return
        expected = {
            i
            for i, (path, principal, session) in rows.items()
            if criteria.get("namespace", path) == path
            and criteria.get("principal", principal) == principal
            and criteria.get("session_id", session) == session
            and i in criteria.get("output_ids", [i])
        }
        assert cache.delete(Selection(**criteria)).outputs == len(expected)
        assert {i for path in "ab" for i in ids_of(cache, path)} == rows.keys() - expected
        cache.check()


# --- live sessions -----------------------------------------------------------------------------------


def test_the_text_of_a_live_session_is_retracted_and_nothing_of_it_is_stored(opened: Opener) -> None:
    cache = opened()
    namespace = cache.namespace("a")
    mine = namespace.open_session([1], principal="ann", labels={"agent": "x"}, session_id="s")
    other = namespace.open_session([1], principal="bob")
    mine.step(TEXT, max_draft_tokens=0)
    other.step([7, 8, 9], max_draft_tokens=0)
    assert drafts(cache, "a") == TEXT[10:18]
    assert cache.delete(Selection(principal="ann")) == Deletion(0, 1, ("a",))
    assert drafts(cache, "a") == []
    mine.step([600, 601], max_draft_tokens=0)
    mine.append_context([5])
    mine.step([602], max_draft_tokens=0)
    assert drafts(cache, "a", [600, 601, 602, *TEXT]) == []
    assert mine.close() is None
    assert other.close() is not None
    assert len(ids_of(cache, "a")) == 1
    assert cache.delete(Selection(session_id="s")) == Deletion()


def test_a_session_is_selected_once_and_not_by_what_it_does_not_have(opened: Opener) -> None:
    cache = opened()
    session = cache.namespace("a").open_session([1], principal="ann")
    session.step(TEXT, max_draft_tokens=0)
    assert cache.delete(Selection("a", older_than_seconds=0)) == Deletion()
    assert cache.delete(Selection(output_ids=[1])) == Deletion()
    assert drafts(cache, "a") == TEXT[10:18]
    assert cache.delete(Selection("a")).sessions == 1
    assert cache.delete(Selection("a")).sessions == 0
    assert session.step([1], max_draft_tokens=4).token_ids.tolist() is not None
    assert session.close() is None


def test_what_was_closed_before_the_deletion_is_deleted(opened: Opener) -> None:
    """Also by closes that did not wait for the disk, and by closes in progress."""
    cache = opened()
    namespace = cache.namespace("a")
    for _ in range(20):
        sessions = [namespace.open_session([1], principal="ann") for _ in range(8)]
        for number, session in enumerate(sessions):
            session.step([number, *TEXT], max_draft_tokens=0)
        threads = [
            threading.Thread(target=session.close, kwargs={"wait": number % 2 == 0})
            for number, session in enumerate(sessions[:4])
        ]
        for thread in threads:
            thread.start()
        for session in sessions[4:6]:
            session.close(wait=False)
        deletion = cache.delete(Selection(principal="ann"))
        for thread in threads:
            thread.join()
        for session in sessions[6:]:
            assert session.close() is None
        parts_of(cache).store.barrier()
        assert ids_of(cache, "a") == []
        assert deletion.outputs + deletion.sessions == 8
        assert drafts(cache, "a") == []
    cache.check()


# --- what was learned --------------------------------------------------------------------------------


def learned(cache: SuffixCache, path: str) -> bytes:
    return index_of(cache.namespace(path)).learner.save()


def teach(cache: SuffixCache, path: str) -> int:
    """Let a namespace learn from two equal outputs; returns the id of the first."""
    ids = []
    for _ in range(2):
        session = cache.namespace(path).open_session([1])
        for token in TEXT:
            session.step([token], max_draft_tokens=4)
        ids.append(session.close())
    assert ids[0] is not None
    return ids[0]


def test_a_deletion_resets_what_its_namespace_has_learned(tmp_path: Path) -> None:
    fresh = new_learner().save()
    with SuffixCache(tmp_path, background=False) as cache:
        first = teach(cache, "a")
        teach(cache, "b")
        assert learned(cache, "a") != fresh
    with SuffixCache(tmp_path, background=False) as cache:
        assert learned(cache, "a") != fresh  # stored by the close
        before = learned(cache, "b")
        cache.namespace("a").delete(output_ids=[first], superseded=True)
        assert learned(cache, "a") != fresh
        cache.namespace("a").delete(output_ids=[first + 1])
        assert learned(cache, "a") == fresh
        assert learned(cache, "b") == before
        assert parts_of(cache).store.get_state("a", "learner") is None
        assert parts_of(cache).store.get_state("b", "learner") is not None
        assert cache.delete(Selection(principal="eve")) == Deletion()
        assert learned(cache, "b") == before
    with SuffixCache(tmp_path, background=False) as cache:
        assert learned(cache, "a") == fresh


def test_own_starting_weights_are_what_is_left(tmp_path: Path) -> None:
    with SuffixCache(tmp_path, background=False, starting_weights=b"") as cache:
        teach(cache, "a")
        assert cache.delete(Selection("a")).outputs == 2
        assert learned(cache, "a") == new_learner(b"").save()


# --- policies that store nothing ---------------------------------------------------------------------


def test_a_policy_of_no_store(opened: Opener) -> None:
    policies = Policies({"secret": Policy(no_store=True), "secret/but": Policy(no_store=False)})
    cache = opened(policies=policies)
    assert cache.namespace("secret/x").policy.no_store is True
    session = cache.namespace("secret/x").open_session([1])
    session.step(TEXT, max_draft_tokens=0)
    again = session.step(TEXT[:10], max_draft_tokens=8).token_ids.tolist()
    assert again == TEXT[10:18]  # it drafts from what it wrote itself
    assert drafts(cache, "secret/x") == []
    assert session.close() is None
    with pytest.raises(NoStoreError, match=r"'secret/x'.*no_store = true"):
        cache.namespace("secret/x").add_output([1, 2, 3])
    with pytest.raises(NoStoreError):
        cache.namespace("secret").add_outputs([output("secret", 5)])
    assert cache.stats().outputs == 0
    assert cache.namespace("secret/but").add_output([1, 2, 3]) > 0
    assert learned(cache, "secret/x") == new_learner().save()


def test_what_was_stored_before_the_policy_stays_until_it_is_deleted(tmp_path: Path) -> None:
    with SuffixCache(tmp_path, background=False) as cache:
        cache.namespace("a").add_output(TEXT)
    with SuffixCache(tmp_path, background=False, policies=Policies({"a": Policy(no_store=True)})) as cache:
        assert drafts(cache, "a") == TEXT[10:18]
        assert cache.delete(Selection("a")).outputs == 1
        assert drafts(cache, "a") == []


def test_no_store_in_a_policies_file(tmp_path: Path) -> None:
    file = tmp_path / "policies.toml"
    file.write_text('[namespaces."a"]\nno_store = true\n')
    assert read_policy_file(file).policies.of("a/b").no_store is True
    file.write_text('[default]\nno_store = "yes"\n')
    with pytest.raises(InvalidInputError, match="no_store"):
        read_policy_file(file)

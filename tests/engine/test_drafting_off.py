"""Policies that turn drafting off: steps go on, drafts are empty at once, and nothing of the text is lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc import Limits, Policies, Policy, SuffixCache, core
from suffixsvc.engine import Session
from suffixsvc.errors import InvalidConfigError
from suffixsvc.index.namespace_stats import StepCounts
from support.stored import stored_outputs

TEXT = list(range(100, 160))
OFF = Policies({"acme/broken": Policy(drafting=False)})
PATH = "acme/broken/sql"


def drafts(session: Session) -> list[int]:
    """Draft at a position that the stored text continues, without a change of the session's text."""
    return session.step([], 8, 0.001).token_ids.tolist()


@pytest.mark.parametrize("sealed", [False, True])
def test_live_sessions_stop_drafting_and_lose_no_text(tmp_path: Path, sealed: bool) -> None:
    with SuffixCache(tmp_path / "d", background=False) as cache:
        namespace = cache.namespace(PATH)
        namespace.add_output(TEXT)
        if sealed:
            cache.seal(PATH)
        session = namespace.open_session([1, *TEXT[:8]])
        assert drafts(session) == TEXT[8:16]

        cache.set_policies(OFF)
        assert namespace.policy.drafting is False
        assert namespace.stats().drafting_off == cache.stats().drafting_off == 1
        before = StepCounts.of(namespace.stats())
        for token in TEXT[8:20]:
            assert not len(session.step([token]))
            assert not len(session.draft_after(TEXT[:8]))  # of its own text, and of another one
            assert not len(session.draft_after([1, *TEXT[:8]]))
        now = StepCounts.of(namespace.stats())
        assert now.num_off - before.num_off >= 12
        assert now.num_off - before.num_off == now.num_steps - before.num_steps
        assert (now.num_drafts, now.num_draft_tokens) == (before.num_drafts, before.num_draft_tokens)
        late = namespace.open_session([2, *TEXT[:8]])
        assert drafts(late) == []

        cache.set_policies(Policies())
        assert drafts(late) == TEXT[8:16]
        assert session.step([], 8, 0.001).token_ids[0] == TEXT[20]
        assert namespace.stats().drafting_off == 0
        late.close(commit=False)
        output_id = session.close()
        [stored] = [each for each in stored_outputs(cache, PATH) if each.output_id == output_id]
        assert stored.output.token_ids.tolist() == TEXT[8:20]
        cache.check()


def test_what_is_written_meanwhile_is_drafted_afterwards() -> None:
    with SuffixCache(policies=OFF) as cache:
        namespace = cache.namespace(PATH)
        with namespace.open_session([1]) as session:
            session.step(TEXT)
        reader = namespace.open_session([2, *TEXT[:8]])
        assert drafts(reader) == []
        cache.set_policies(Policies())
        assert drafts(reader) == TEXT[8:16]


def test_sessions_that_are_opened_in_a_namespace_with_drafting_off_draft_nothing_of_others() -> None:
    with SuffixCache(policies=OFF) as cache:
        cache.namespace("acme/sql").add_output(TEXT)
        session = cache.namespace(PATH).open_session(TEXT[:8], reads=["acme/sql"])
        assert drafts(session) == []
        assert drafts(cache.namespace("acme/other").open_session(TEXT[:8], reads=["acme/sql"])) == TEXT[8:16]


def test_corpora_that_every_session_reads_are_not_drafted_from() -> None:
    with SuffixCache() as cache:
        cache.namespace("corpus", "t").add_output(TEXT)
        cache.read_by_default(["corpus"])
        session = cache.namespace("acme", "t").open_session(TEXT[:8])
        assert drafts(session) == TEXT[8:16]
        cache.set_policies(Policies({"corpus": Policy(drafting=False)}))
        assert drafts(session) == []
        cache.set_policies(Policies())
        assert drafts(session) == TEXT[8:16]


def test_the_nearest_path_decides() -> None:
    policies = Policies(
        {"a": Policy(drafting=False), "a/b": Policy(drafting=True)}, Policy(max_bytes=1 << 20)
    )
    assert [policies.of(path).drafting for path in ("a", "a/c", "a/b", "a/b/c", "ab")] == [
        False,
        False,
        True,
        True,
        None,
    ]
    with pytest.raises(InvalidConfigError, match="drafting must be a bool"):
        Policy(drafting=0)  # type: ignore[arg-type]


words = st.lists(st.integers(1, 6), min_size=1, max_size=40)


@settings(deadline=None)
@given(
    others=st.lists(words, max_size=4),
    own=st.lists(words, max_size=3),
    sealed=st.integers(0, 4),
    written=st.lists(st.integers(1, 6), min_size=4, max_size=60),
    switch=st.integers(0, 3),
    tree=st.booleans(),
)
def test_a_namespace_that_is_off_is_read_as_if_it_were_not_there(
    tmp_path_factory: pytest.TempPathFactory,
    others: list[list[int]],
    own: list[list[int]],
    sealed: int,
    written: list[int],
    switch: int,
    tree: bool,
) -> None:
    """Drafts are those of a session that does not read it, bit for bit; also if it is turned off while the
    session is open, as long as nothing was learned from it."""
    off = Policies({"other": Policy(drafting=False)})
    folder = tmp_path_factory.mktemp("off")
    limits = Limits(seal_tokens=1 << 20)
    with (
        SuffixCache(folder / "a", limits=limits, background=False) as with_it,
        SuffixCache(folder / "b", limits=limits, background=False) as without,
    ):
        for cache in (with_it, without):
            for number, text in enumerate(others):
                cache.namespace("other").add_output(text)
                if number + 1 == sealed:
                    cache.seal("other")
            for text in own:
                cache.namespace("own").add_output(text)
            cache.namespace("other", None).put_note("exists", b"1")
        if switch == 0:
            with_it.set_policies(off)
        one = with_it.namespace("own").open_session(written[:2], reads=["other"])
        two = without.namespace("own").open_session(written[:2])
        if switch == 1:
            with_it.set_policies(off)
        elif switch == 2:
            one.append_context(written[2:3])
            two.append_context(written[2:3])
            with_it.set_policies(off)
        elif switch == 3:  # on and off again
            with_it.set_policies(off)
            with_it.set_policies(Policies())
            with_it.set_policies(off)
        for token in written[3:]:
            drafted, expected = (each.step([token], 8, 0.001, tree) for each in (one, two))
            assert drafted.token_ids.tolist() == expected.token_ids.tolist()
            assert drafted.probs.tolist() == expected.probs.tolist()
        one.close(commit=False)
        two.close(commit=False)
        with_it.check()


def test_the_switch_is_thrown_while_sessions_step() -> None:
    """Steps that overlap the switch draft from all or nothing of it; later ones draft nothing."""
    rng = np.random.default_rng(1)
    texts = [rng.integers(1, 50, 2000).tolist() for _ in range(4)]
    with SuffixCache() as cache:
        namespace = cache.namespace(PATH)
        for text in texts:
            namespace.add_output(text)
        sessions = [namespace.open_session(text[:100], private=True) for text in texts]
        for at in range(100, 1900):
            if at % 100 == 0:
                cache.set_policies(OFF if at // 100 % 2 else Policies())
            for session, text in zip(sessions, texts, strict=True):
                drafted = session.step(text[at : at + 1], 4, 0.001)
                assert bool(len(drafted)) == (at // 100 % 2 == 0)
        for session in sessions:
            session.close(commit=False)
        assert core.Index().drafting is True

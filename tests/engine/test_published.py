"""Published runs in the engine: who reads what, when runs are built and withdrawn, where their text is."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from suffixsvc import NewOutput, Policies, Policy, Selection, SuffixCache
from suffixsvc.engine.publishing.texts import NewestOutputs
from suffixsvc.errors import UnknownNamespaceError
from suffixsvc.index import Session
from support.serving import eventually

MATCH = 8
POOL = Policy(min_principals=2, match=MATCH, publish_every_seconds=1)
SHARED = list(range(100, 130))
OF_ANN = list(range(200, 230))


def none_of(_path: str) -> bool:
    """A reader without a full grant."""
    return False


@pytest.fixture
def pool(place: Path | None) -> Iterator[SuffixCache]:
    """A cache whose namespace "pool" publishes what two principals wrote, when publish() is called."""
    with SuffixCache(place, policies=Policies({"pool": POOL}), background=False) as cache:
        yield cache
        cache.check()


def write(
    cache: SuffixCache, path: str, principal: str, *runs: Sequence[int], tokenizer: str | None = None
) -> int:
    tokens = np.array([token for run in runs for token in run], np.int32)
    lens = tuple(len(run) for run in runs)
    output = NewOutput(path, tokens, lens, np.empty(0, np.int32), principal=principal)
    [output_id] = cache.namespace(path, tokenizer).add_outputs([output])
    return output_id


def drafted(session: Session, context: Sequence[int]) -> list[int]:
    session.step(list(context[:-1]), max_draft_tokens=0)
    draft = session.step([context[-1]], max_draft_tokens=64, verify_cost=0.0)
    return [int(token) for token in draft.token_ids]


def reads(
    cache: SuffixCache, context: Sequence[int], path: str = "pool", at: str = "", tokenizer: str = ""
) -> list[int]:
    """What a reader without a full grant drafts after a context."""
    named = [path] if at else None
    namespace = cache.namespace(at or path, tokenizer or None)
    session = namespace.open_session([1, 2, 3], reads=named, private=True, principal="eve", sees_all=none_of)
    found = drafted(session, context)
    session.close(commit=False)
    return found


def test_a_reader_gets_runs_of_enough_principals_and_nothing_else(pool: SuffixCache) -> None:
    write(pool, "pool", "ann", [*OF_ANN, *SHARED])
    write(pool, "pool", "bob", [*SHARED, 7, 8])
    pool.publish()
    assert reads(pool, SHARED[:5])[:8] == SHARED[5:13]
    assert reads(pool, SHARED[-8:-4]) == SHARED[-4:], "what follows a run is not published"
    assert reads(pool, OF_ANN[:5]) == []
    assert reads(pool, SHARED[:5], at="eve/own")[:8] == SHARED[5:13]
    stats = pool.namespace("pool").stats()
    assert (stats.min_principals, stats.published_runs, stats.published_tokens) == (2, 1, len(SHARED))
    assert stats.last_published > 0


def test_readers_with_a_full_grant_see_everything(pool: SuffixCache) -> None:
    write(pool, "pool", "ann", OF_ANN)
    with pool.namespace("pool").open_session([1, 2, 3], principal="eve") as session:
        assert drafted(session, OF_ANN[:5])[:10] == OF_ANN[5:15]


def test_a_reader_sees_its_own_text_and_no_live_text(pool: SuffixCache) -> None:
    namespace = pool.namespace("pool")
    writer = namespace.open_session([1, 2, 3], principal="ann")
    writer.step(OF_ANN)
    reader = namespace.open_session([1, 2, 3], principal="eve", sees_all=none_of)
    assert drafted(reader, OF_ANN[:5]) == []
    assert drafted(reader, [50, *OF_ANN[:3]])[:2] == OF_ANN[3:5], "what it has written itself"
    sibling = namespace.open_session([1, 2, 3], principal="eve", sees_all=none_of)
    assert drafted(sibling, [50, OF_ANN[0]]) == [], "nor another session's of the same principal"
    for session in (writer, reader, sibling):
        session.close(commit=False)


def test_what_a_reader_writes_is_seen_by_those_with_a_full_grant(pool: SuffixCache) -> None:
    namespace = pool.namespace("pool")
    writer = namespace.open_session([1, 2, 3], principal="eve", sees_all=none_of)
    writer.step(OF_ANN)
    with namespace.open_session([1, 2, 3]) as operator:
        assert drafted(operator, OF_ANN[:5])[:10] == OF_ANN[5:15]
    assert writer.close() is not None
    assert pool.namespace("pool").stats().outputs == 2


def test_runs_are_counted_by_principals_not_by_outputs(pool: SuffixCache) -> None:
    for _ in range(3):
        write(pool, "pool", "ann", SHARED)
    pool.publish()
    assert reads(pool, SHARED[:5]) == []
    write(pool, "pool", "", SHARED)  # the operator is one
    pool.publish()
    assert reads(pool, SHARED[:5])[:8] == SHARED[5:13]


def test_namespaces_below_count_with_their_tokenizer(pool: SuffixCache) -> None:
    write(pool, "pool/ann", "ann", SHARED, tokenizer="tok-a")
    write(pool, "pool/carol", "carol", SHARED, tokenizer="tok-b")
    pool.publish()
    assert reads(pool, SHARED[:5], at="eve/own") == [], "of one principal each"
    write(pool, "pool/bob", "bob", SHARED, tokenizer="tok-a")
    pool.publish()
    assert pool.namespace("pool").tokenizer == "tok-a"
    assert reads(pool, SHARED[:5], at="eve/own", tokenizer="tok-a")[:8] == SHARED[5:13]
    assert pool.namespace("pool/ann").stats().published_runs == 0, "one principal"


def test_a_path_can_be_read_before_anything_is_written(pool: SuffixCache) -> None:
    session = pool.namespace("eve/own").open_session([1], reads=["pool"], principal="eve", sees_all=none_of)
    for name in ("ann", "bob"):
        write(pool, f"pool/{name}", name, SHARED)
    pool.publish()
    assert drafted(session, SHARED[:5])[:8] == SHARED[5:13]
    session.close(commit=False)


def test_a_namespace_below_with_stricter_terms_does_not_count(place: Path | None) -> None:
    policies = Policies({"pool": POOL, "pool/strict": Policy(min_principals=3)})
    with SuffixCache(place, policies=policies, background=False) as cache:
        write(cache, "pool/a", "ann", SHARED)
        write(cache, "pool/strict", "bob", SHARED)
        cache.publish()
        assert reads(cache, SHARED[:5], at="eve/own") == []
        write(cache, "pool/b", "bob", SHARED)
        cache.publish()
        assert reads(cache, SHARED[:5], at="eve/own")[:8] == SHARED[5:13]


def test_runs_do_not_cross_what_was_appended_between(pool: SuffixCache) -> None:
    for name in ("ann", "bob"):
        write(pool, "pool", name, SHARED[:10], SHARED[10:20])
    pool.publish()
    assert reads(pool, SHARED[:5]) == SHARED[5:10]


def test_shorter_runs_than_match_are_not_published(pool: SuffixCache) -> None:
    write(pool, "pool", "ann", [*SHARED[: MATCH - 1], 1])
    write(pool, "pool", "bob", [*SHARED[: MATCH - 1], 2])
    pool.publish()
    assert reads(pool, SHARED[:3]) == []
    assert pool.namespace("pool").stats().published_runs == 0


def test_policies_apply_to_live_sessions(pool: SuffixCache) -> None:
    write(pool, "pool", "ann", OF_ANN)
    pool.set_policies(Policies())
    session = pool.namespace("pool").open_session([1, 2, 3], principal="eve", sees_all=none_of)
    assert drafted(session, OF_ANN[:5])[:10] == OF_ANN[5:15]
    pool.set_policies(Policies({"pool": POOL}))
    assert drafted(session, [50, *OF_ANN[10:15]]) == [], "it has lost the hot index"
    pool.set_policies(Policies({"pool": Policy(min_principals=0)}))
    assert drafted(session, [51, *OF_ANN[15:20]])[:5] == OF_ANN[20:25], "and has it again"
    session.close(commit=False)


def test_rights_apply_to_live_sessions(pool: SuffixCache) -> None:
    granted = True
    write(pool, "pool", "ann", OF_ANN)
    session = pool.namespace("pool").open_session([1], principal="eve", sees_all=lambda path: granted)
    assert drafted(session, OF_ANN[:5])[:10] == OF_ANN[5:15]
    granted = False
    pool.set_policies(Policies({"pool": POOL}))
    assert drafted(session, [50, *OF_ANN[10:15]]) == []
    session.close(commit=False)


def test_stricter_terms_take_runs_out_of_use_at_once(pool: SuffixCache) -> None:
    write(pool, "pool", "ann", SHARED)
    write(pool, "pool", "bob", SHARED)
    pool.publish()
    assert reads(pool, SHARED[:5])[:8] == SHARED[5:13]
    pool.set_policies(Policies({"pool": Policy(min_principals=3, match=MATCH)}))
    assert reads(pool, SHARED[:5]) == []
    pool.publish()
    assert reads(pool, SHARED[:5]) == []
    pool.set_policies(Policies({"pool": POOL}))
    pool.publish()
    assert reads(pool, SHARED[:5])[:8] == SHARED[5:13]


@pytest.mark.parametrize("how", ["output", "principal", "namespace", "everything"])
def test_a_deletion_takes_runs_out_of_use(pool: SuffixCache, how: str) -> None:
    output_id = write(pool, "pool/ann", "ann", SHARED)
    write(pool, "pool/bob", "bob", SHARED)
    pool.publish()
    session = pool.namespace("eve/own").open_session([1], reads=["pool"], principal="eve", sees_all=none_of)
    assert drafted(session, SHARED[:5])[:8] == SHARED[5:13]
    if how == "output":
        pool.namespace("pool/ann").delete(output_ids=[output_id])
    elif how == "principal":
        pool.delete(Selection(principal="ann"))
    elif how == "namespace":
        pool.delete_namespace("pool/ann")
    else:
        pool.delete(Selection(older_than_seconds=0))
    assert not {*drafted(session, [50, *SHARED[:5]])} & {*SHARED[5:]}, "before they are built again"
    pool.publish()
    assert not {*drafted(session, [51, *SHARED[:5]])} & {*SHARED[5:]}
    session.close(commit=False)


def test_a_deletion_of_other_text_builds_the_same_runs_again(pool: SuffixCache) -> None:
    for name in ("ann", "bob"):
        write(pool, "pool", name, SHARED)
    other = write(pool, "pool", "ann", OF_ANN)
    pool.publish()
    pool.namespace("pool").delete(output_ids=[other])
    pool.publish()
    assert reads(pool, SHARED[:5])[:8] == SHARED[5:13]


@pytest.mark.parametrize("how", ["deletion", "namespace", "terms"])
def test_a_build_that_a_deletion_overtakes_publishes_nothing(place: Path | None, how: str) -> None:
    """The build has read the text when it is deleted, and publishes after the deletion has returned."""
    built, deleted = threading.Event(), threading.Event()

    class Slow(SuffixCache):
        @staticmethod
        def _sync_point(name: str) -> None:
            if name == "publish-built" and not deleted.is_set():
                built.set()
                assert deleted.wait(60)

    with Slow(place, policies=Policies({"pool": POOL}), background=False) as cache:
        output_id = write(cache, "pool", "ann", SHARED)
        write(cache, "pool", "bob", SHARED)
        builder = threading.Thread(target=cache.publish)
        builder.start()
        assert built.wait(60)
        if how == "deletion":
            cache.namespace("pool").delete(output_ids=[output_id])
        elif how == "namespace":
            cache.delete_namespace("pool")
        else:
            cache.set_policies(Policies({"pool": Policy(min_principals=3, match=MATCH)}))
        deleted.set()
        builder.join()
        assert reads(cache, SHARED[:5]) == []
        assert cache.namespace("pool").stats().published_runs == 0


def files_with(folder: Path, tokens: Sequence[int]) -> list[str]:
    """Files below a folder that hold tokens, as int32 or as codes of a segment's text."""
    found = []
    for file in folder.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            codes = np.arange(1, len(tokens) + 1, dtype="<u2").tobytes()
            if np.array(tokens, "<i4").tobytes() in data or (file.suffix == ".seg" and codes in data):
                found.append(str(file.relative_to(folder)))
    return found


def test_the_text_of_a_deleted_output_is_in_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    with SuffixCache(folder, policies=Policies({"pool": POOL}), background=False) as cache:
        write(cache, "pool", "ann", SHARED)
        write(cache, "pool", "bob", SHARED)
        cache.publish()
        assert any(name.startswith("published/") for name in files_with(folder, SHARED))
        cache.delete(Selection(older_than_seconds=0), from_disk=True)
        assert files_with(folder, SHARED) == []


def test_a_closed_cache_leaves_no_published_file(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    with SuffixCache(folder, policies=Policies({"pool": POOL}), background=False) as cache:
        for name in ("ann", "bob"):
            write(cache, "pool", name, SHARED)
        cache.publish()
        assert list((folder / "published").iterdir())
    assert not list((folder / "published").iterdir())


def test_the_background_thread_builds_on_schedule_and_after_deletions(place: Path | None) -> None:
    with SuffixCache(place, policies=Policies({"pool": POOL})) as cache:
        first = write(cache, "pool", "ann", SHARED)
        write(cache, "pool", "bob", SHARED)
        eventually(lambda: reads(cache, SHARED[:5])[:8] == SHARED[5:13], "runs are published")
        write(cache, "pool", "ann", OF_ANN)
        write(cache, "pool", "bob", OF_ANN)
        eventually(lambda: reads(cache, OF_ANN[:5])[:8] == OF_ANN[5:13], "runs are published again")
        cache.namespace("pool").delete(output_ids=[first])
        assert reads(cache, SHARED[:5]) == []
        eventually(lambda: reads(cache, OF_ANN[:5])[:8] == OF_ANN[5:13], "the other run is published again")
        assert reads(cache, SHARED[:5]) == []
        task = cache.background_tasks()["publish"]
        assert task.failures == 0
        assert task.last_success > 0
        assert task.alive


def test_a_restart_builds_the_runs_again(tmp_path: Path) -> None:
    policies = Policies({"pool": POOL})
    with SuffixCache(tmp_path / "d", policies=policies, background=False) as cache:
        for name in ("ann", "bob"):
            write(cache, f"pool/{name}", name, SHARED)
    with SuffixCache(tmp_path / "d", policies=policies) as cache:
        eventually(lambda: reads(cache, SHARED[:5], at="eve/own")[:8] == SHARED[5:13], "runs are published")


def test_a_cache_without_the_policy_has_no_thread_for_it() -> None:
    with SuffixCache() as cache:
        assert "publish" not in cache.background_tasks()
        with pytest.raises(UnknownNamespaceError):
            cache.namespace("own").open_session([1], reads=["pool"])


def test_a_failed_build_is_reported_and_repeated(tmp_path: Path) -> None:
    broken = tmp_path / "d" / "published"
    with SuffixCache(tmp_path / "d", policies=Policies({"pool": POOL})) as cache:
        broken.write_text("a file in the place of the folder")
        for name in ("ann", "bob"):
            write(cache, "pool", name, SHARED)
        eventually(lambda: cache.background_tasks()["publish"].failures_in_a_row, "a build has failed")
        assert "published" in cache.background_tasks()["publish"].last_error
        assert reads(cache, SHARED[:5]) == []
        broken.unlink()
        eventually(lambda: reads(cache, SHARED[:5])[:8] == SHARED[5:13], "runs are published")
        eventually(lambda: not cache.background_tasks()["publish"].failures_in_a_row, "no failure is left")


def test_learned_tables_of_readers_are_their_own(pool: SuffixCache) -> None:
    """Those of the namespace would tell which token follows another one in the texts of others."""
    namespace = pool.namespace("pool")
    before = namespace.learned_weights()
    for _ in range(3):
        with namespace.open_session([1], principal="eve", sees_all=none_of) as session:
            drafted(session, [*OF_ANN, *OF_ANN[:9]])
    assert namespace.learned_weights() == before


def test_the_newest_outputs_of_each_principal_are_chosen() -> None:
    """One principal that writes much does not displace the others."""
    newest = NewestOutputs(100)
    for n in range(1000):
        newest.add("much", 2 * n, 10)
        if n % 100 == 0:
            newest.add("little", 2 * n + 1, 4)
    chosen = newest.chosen()
    assert chosen["little"] == [2 * n + 1 for n in range(0, 1000, 100)]
    assert chosen["much"] == [2 * n for n in range(994, 1000)]

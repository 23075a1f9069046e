"""Random changes of a cache between the steps of its backup, compared with a model."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

import pytest
from backup_testing import NS, PROMPTS, Contents, contents, contents_of, drafts, open_cache, output, seal_one
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suffixsvc import SuffixCache
from suffixsvc.engine.backup.restore import restore
from suffixsvc.engine.repair.inspection import check_folder
from suffixsvc.store.copies import log_copy
from support.engine_parts import parts_of
from support.long_form import rounds

PATHS = (NS, "other", "other/third")
#: points at which the backup holds no lock
POINTS = ("backup-begun", "backup-page", "backup-rest", "backup-ended", "backup-copied", "backup-described")
CHANGES = (
    "add",
    "add",
    "add",
    "forget",
    "forget many",
    "seal",
    "merge",
    "compact",
    "delete",
    "note",
    "expire",
)


@pytest.fixture(scope="module", autouse=True)
def _small_pages() -> object:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"_ROWS": 3, "_LAST_LSNS": 3, "_TOMBSTONES": 2, "_STATES": 2}.items():
            patch.setattr(log_copy, name, value)
        yield


class Changes:
    """Changes a cache; ``wanted`` is what the log holds, by the model."""

    def __init__(self, cache: SuffixCache, random: Random) -> None:
        self.cache, self.random = cache, random
        self.wanted: dict[int, tuple[str, list[int]]] = {}

    def make(self, kind: str) -> None:
        cache, random = self.cache, self.random
        path = random.choice(PATHS)
        mine = [i for i, (its_path, _) in self.wanted.items() if its_path == path]
        match kind:
            case "add":
                batch = [output(random, path) for _ in range(random.randrange(1, 5))]
                ids = cache.namespace(path).add_outputs(batch)
                self.wanted |= {
                    i: (path, each.token_ids.tolist()) for i, each in zip(ids, batch, strict=True)
                }
            case "forget" if mine:
                self.drop([random.choice(mine)], path)
            case "forget many" if mine:
                self.drop(random.sample(mine, (len(mine) + 1) // 2), path)
            case "seal":
                seal_one(cache, path)
            case "merge" if path in self.stored():
                with parts_of(cache).exclusive() as sealer:
                    assert sealer is not None
                    sealer.merge(parts_of(cache).catalog.index_of(path))
            case "compact":
                cache.compact()
            case "delete" if path in self.stored() and random.random() < 0.3:
                cache.delete_namespace(path)
                self.wanted = {i: row for i, row in self.wanted.items() if row[0] != path}
            case "note":
                cache.namespace(path).put_note("n", random.randbytes(5))
            case "expire":
                cache.expire(4e9)
                left = contents(cache)
                self.wanted = {i: row for i, row in self.wanted.items() if i in left}

    def stored(self) -> set[str]:
        return {record.path for record in parts_of(self.cache).store.namespaces()}

    def drop(self, ids: list[int], path: str) -> None:
        parts_of(self.cache).outputs.forget_many(path, ids)
        for output_id in ids:
            del self.wanted[output_id]


@settings(max_examples=rounds(6, full=15), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32 - 1),
    before=st.integers(0, 30),
    rate=st.floats(0.1, 2.0),
)
def test_a_backup_is_the_log_as_of_its_lsn(seed: int, before: int, rate: float) -> None:
    random = Random(seed)
    changes: Changes | None = None
    ended: list[tuple[int, Contents, dict[int, tuple[str, list[int]]]]] = []

    def hook(name: str) -> None:
        if changes is None or name not in POINTS:
            return
        if name == "backup-ended":
            last = changes.cache.stats().last_lsn
            ended.append((last, contents(changes.cache), dict(changes.wanted)))
            expected_drafts.append(drafts(changes.cache, NS, PROMPTS))
        while random.random() < rate / (1 + rate):
            changes.make(random.choice(CHANGES))

    expected_drafts: list[object] = []
    with tempfile.TemporaryDirectory(prefix="backup-") as scratch:
        folder = Path(scratch)
        with open_cache(folder / "data", hook) as cache:
            cache.namespace(NS).put_note("n", b"")
            first = Changes(cache, random)
            for _ in range(before):
                first.make(random.choice(CHANGES))
            changes = first
            manifest = cache.backup(folder / "backup")
            cache.check()
        [(lsn, wanted, model)] = ended
        assert {i: (row[1], row[2]) for i, row in wanted.items()} == model
        assert manifest.lsn == lsn
        assert manifest.outputs == len(wanted)
        assert check_folder(folder / "backup") == []
        done = restore(folder / "backup", folder / "restored")
        assert not done.rebuilt
        assert check_folder(folder / "restored") == []
        assert contents_of(folder / "restored") == wanted
        with open_cache(folder / "restored") as cache:
            # learned tables are states of some moment: the drafts, not their probabilities, are compared
            found = drafts(cache, NS, PROMPTS)
            assert [each[2] and each[2][0] for each in found] == [
                each[2] and each[2][0]
                for each in expected_drafts[0]  # type: ignore[attr-defined]
            ]

"""Pruning of lookup caches, and import of files without a manifest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from suffixsvc.errors import InvalidConfigError, InvalidInputError, StoreCorruptError, TokenizerMismatchError
from suffixsvc_caches.changing import import_cache, merge_caches, prune_cache
from suffixsvc_caches.lookup.algorithm import LAX, STRICT
from suffixsvc_caches.lookup.files import read_lookup, write_lookup
from suffixsvc_caches.lookup.pruning import prune_table
from suffixsvc_caches.lookup.table import LookupTable
from suffixsvc_caches.manifest import CacheFormat, Manifest, TokenizerNote, read_manifest, write_manifest
from suffixsvc_cli import main
from suffixsvc_client.text import TextCodec
from support.lookup_tables import records_of_table, table_of

TABLE = {
    (1,): {9: 100},  # not a 2-gram
    (1, 2): {3: 9, 4: 1},
    (2, 3): {4: 5, 5: 5},  # half is enough
    (3, 4): {5: 50, 6: 30, 7: 30},  # less than half
    (4, 5): {6: 1},  # once
    (5, 6): {7: 20},
    (6, 7, 8): {9: 90},
}


@pytest.fixture
def codec(tmp_path: Path) -> TextCodec:
    words = {f"w{i}": i for i in range(100)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return TextCodec(tokenizer)


def test_a_static_cache_keeps_what_fires_most() -> None:
    table = table_of(TABLE)
    assert records_of_table(prune_table(table, 10**6, static=True)) == {
        (1, 2): {3: 9},
        (2, 3): {4: 5},
        (5, 6): {7: 20},
    }
    assert records_of_table(prune_table(table, 2 * 28, static=True)) == {(1, 2): {3: 9}, (5, 6): {7: 20}}
    assert records_of_table(prune_table(table, 27, static=True)) == {}
    assert records_of_table(prune_table(table_of({}), 100, static=True)) == {}


def test_a_dynamic_cache_drops_ngrams_that_a_shorter_one_makes_redundant() -> None:
    table = table_of({(1,): {2: 10}, (5, 1): {2: 6}, (6, 1): {3: 4}, (5, 6, 1): {3: 2}, (5, 5, 1): {4: 1}})
    assert records_of_table(prune_table(table, None, static=False)) == {(1,): {2: 10}, (6, 1): {3: 4}}
    assert records_of_table(prune_table(table, 28, static=False)) == {(1,): {2: 10}}


ngrams = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)
tables = st.dictionaries(
    ngrams, st.dictionaries(st.integers(0, 2), st.integers(1, 6), min_size=1), min_size=1, max_size=40
)


@given(records=tables, text=st.lists(st.integers(0, 2), min_size=4, max_size=30), static=st.booleans())
def test_pruning_changes_no_draft(
    records: dict[tuple[int, ...], dict[int, int]], text: list[int], static: bool
) -> None:
    """Except for ties: of two equal best followers llama.cpp drafts either."""
    rules = {2: LAX[1]} if static else dict(enumerate(STRICT, 1))
    records = {n: f for n, f in records.items() if list(f.values()).count(max(f.values())) == 1}
    full = table_of(records)
    small = prune_table(full, None, static=static)
    assert len(small) <= len(full)
    for at in range(4, len(text) + 1):
        assert _first(small, text[:at], rules) == _first(full, text[:at], rules)


def _first(table: LookupTable, text: list[int], rules: dict[int, tuple[int, int]]) -> list[int]:
    """Token drafted after a text from one cache, by an independent implementation of the rules."""
    records = records_of_table(table)
    for order in sorted(rules, reverse=True):
        followers = records.get(tuple(text[-order:]), {})
        total, least, percent = sum(followers.values()), *rules[order]
        if followers and total >= least and 100 * max(followers.values()) >= percent * total:
            return [max(followers, key=lambda token: followers[token])]
    return []


def test_pruning_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_lookup(tmp_path / "a.bin", table_of({n: f for n, f in TABLE.items() if len(n) == 2}))
    manifest = prune_cache(tmp_path / "a.bin", tmp_path / "b.bin", 56)
    assert records_of_table(read_lookup(tmp_path / "b.bin")) == {(1, 2): {3: 9}, (5, 6): {7: 20}}
    assert (manifest.bytes, manifest.ngrams) == (56, {2: 2})
    assert [source.file for source in manifest.sources] == ["a.bin"]
    with pytest.raises(InvalidInputError, match="exists"):
        prune_cache(tmp_path / "a.bin", tmp_path / "b.bin", 56)
    with pytest.raises(InvalidInputError, match="the budget must be 28 bytes or more"):
        prune_cache(tmp_path / "a.bin", tmp_path / "c.bin", 27)
    assert not (tmp_path / "c.bin").exists()
    assert main(["cache", "prune", str(tmp_path / "a.bin"), str(tmp_path / "c.bin"), "--budget", "1K"]) == 0
    assert "3 n-grams" in capsys.readouterr().out


def test_importing_takes_what_llama_would_load(tmp_path: Path, codec: TextCodec) -> None:
    words = [7, 8, -1, -1, 1, 9, 3, 5, 6, -1, -1, 3, 7, 2, 7, 8, 8, 1, 7, 8, -1, -1, 1, 9, 99]
    (tmp_path / "theirs.bin").write_bytes(np.array(words, np.int32).tobytes())
    manifest = import_cache(tmp_path / "theirs.bin", tmp_path / "ours.bin", codec, "tokenizer.json")
    table = read_lookup(tmp_path / "ours.bin")
    assert records_of_table(table) == {(5, 6): {7: 2, 8: 1}, (7, 8): {9: 3}}
    assert len(table) == 2  # without the second record of (7, 8) and the second 7
    assert manifest == read_manifest(tmp_path / "ours.bin")
    assert (manifest.tokenizer.fingerprint, manifest.tokenizer.vocab_size) == (codec.fingerprint, 100)


def test_importing_refuses_another_vocabulary(tmp_path: Path, codec: TextCodec) -> None:
    write_lookup(tmp_path / "theirs.bin", table_of({(1, 2): {100: 1}}))
    with pytest.raises(InvalidInputError, match="must be in the tokenizer's vocabulary"):
        import_cache(tmp_path / "theirs.bin", tmp_path / "ours.bin", codec, "t")
    write_lookup(tmp_path / "good.bin", table_of({(1, 2): {99: 1}}))
    import_cache(tmp_path / "good.bin", tmp_path / "ours.bin", codec, "t")
    other = TextCodec(Tokenizer(models.WordLevel({f"v{i}": i for i in range(100)}, unk_token="v0")))
    with pytest.raises(TokenizerMismatchError):
        import_cache(tmp_path / "ours.bin", tmp_path / "more.bin", other, "t")
    assert not (tmp_path / "more.bin").exists()


def test_importing_ignores_the_manifest_of_an_older_file(tmp_path: Path, codec: TextCodec) -> None:
    write_lookup(tmp_path / "old.bin", table_of({(1, 2): {3: 1}}))
    other = TextCodec(Tokenizer(models.WordLevel({f"v{i}": i for i in range(100)}, unk_token="v0")))
    import_cache(tmp_path / "old.bin", tmp_path / "theirs.bin", other, "another")
    write_lookup(tmp_path / "theirs.bin", table_of({(4, 5): {6: 2}}), force=True)
    manifest = import_cache(tmp_path / "theirs.bin", tmp_path / "ours.bin", codec, "t")
    assert manifest.tokenizer.fingerprint == codec.fingerprint
    assert records_of_table(read_lookup(tmp_path / "ours.bin")) == {(4, 5): {6: 2}}


def test_files_that_are_refused(tmp_path: Path, codec: TextCodec) -> None:
    words = {
        "poison": [1, 2, -1, -1, 1, -5, 9],  # llama.cpp aborts when it drafts it
        "unused": [1, -1, 2, -1, 1, 5, 9],
        "beyond": [1, 2, -1, -1, 1, 100, 9],
    }
    for name, its in words.items():
        (tmp_path / name).write_bytes(np.array(its, np.int32).tobytes())
    with pytest.raises(StoreCorruptError, match="byte 20: -5 is not a token id"):
        merge_caches([tmp_path / "poison"], tmp_path / "out")
    with pytest.raises(InvalidInputError, match="must have n-grams of token ids"):
        import_cache(tmp_path / "unused", tmp_path / "out", codec, "t")
    note = TokenizerNote(codec.fingerprint, 100)
    table = read_lookup(tmp_path / "beyond")
    write_manifest(
        tmp_path / "beyond", Manifest.of(tmp_path / "beyond", table, CacheFormat.STATIC, tokenizer=note)
    )
    with pytest.raises(StoreCorruptError, match="must be in the vocabulary that its manifest names"):
        merge_caches([tmp_path / "beyond"], tmp_path / "out")
    with pytest.raises(InvalidConfigError, match="the budget must be 28 bytes or more"):
        prune_cache(tmp_path / "beyond", tmp_path / "out", 5)
    assert not (tmp_path / "out").exists()


def test_the_verb_imports(tmp_path: Path, codec: TextCodec, capsys: pytest.CaptureFixture[str]) -> None:
    write_lookup(tmp_path / "good.bin", table_of({(1, 2): {99: 1}}))
    arguments = ["cache", "import", str(tmp_path / "good.bin"), str(tmp_path / "ours.bin")]
    assert main([*arguments, "--tokenizer", str(tmp_path / "tokenizer.json")]) == 0
    assert "1 n-grams" in capsys.readouterr().out

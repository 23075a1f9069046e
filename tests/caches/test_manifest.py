"""Manifests of lookup caches: bytes, and detection of mismatches."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixsvc.errors import (
    InvalidInputError,
    StoreCorruptError,
    StoreError,
    StoreForeignError,
    SuffixError,
    TokenizerMismatchError,
)
from suffixsvc_caches.cache_files import load_cache
from suffixsvc_caches.lookup.files import read_lookup, write_lookup
from suffixsvc_caches.manifest import (
    CacheFormat,
    Manifest,
    SourceFile,
    TokenizerNote,
    find_mismatches,
    manifest_path,
    read_manifest,
    write_manifest,
)
from support.lookup_tables import records_of_table, table_of

TABLE = table_of({(10, 11): {13: 1, 12: 1}, (11, 12): {10: 1}, (7,): {8: 5}})
GOLDEN = """\
{
  "manifest": 1,
  "format": "llama-lookup-static",
  "file": "sql.bin",
  "bytes": 92,
  "xxh3": "c8b82675bdf2b8ac",
  "ngrams": {
    "1": 1,
    "2": 2
  },
  "pairs": 4,
  "count": 8,
  "tokenizer": {
    "fingerprint": "xxh3:00000000000000aa",
    "vocab_size": 14,
    "name": "tökens.gguf"
  },
  "sources": [
    {
      "file": "logs/a.jsonl",
      "bytes": 3,
      "xxh3": "78af5f94892f3950"
    }
  ],
  "options": {
    "top": 8
  },
  "made_by": "suffixsvc 0.1.0"
}
"""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    path = tmp_path / "sql.bin"
    write_lookup(path, TABLE)
    log = tmp_path / "a.jsonl"
    log.write_bytes(b"abc")
    manifest = Manifest.of(
        path,
        TABLE,
        CacheFormat.STATIC,
        tokenizer=TokenizerNote("xxh3:00000000000000aa", 14, "tökens.gguf"),
        sources=(SourceFile.of(log, "logs/a.jsonl"),),
        options={"top": 8},
        made_by="suffixsvc 0.1.0",
    )
    write_manifest(path, manifest)
    return path


def test_bytes_of_a_manifest(cache: Path) -> None:
    assert manifest_path(cache).name == "sql.bin.manifest.json"
    assert manifest_path(cache).read_text(encoding="utf-8") == GOLDEN
    read = read_manifest(cache)
    assert read is not None
    assert read.as_json() == GOLDEN
    assert list(find_mismatches(cache, read, read_lookup(cache))) == []


def test_a_cache_without_a_manifest(tmp_path: Path) -> None:
    write_lookup(tmp_path / "bare.bin", TABLE)
    table, manifest = load_cache(tmp_path / "bare.bin", "xxh3:00000000000000bb")
    assert manifest is None
    assert records_of_table(table) == records_of_table(TABLE)


def test_ids_of_another_tokenizer_are_refused(cache: Path) -> None:
    assert records_of_table(load_cache(cache, "xxh3:00000000000000aa")[0]) == records_of_table(TABLE)
    with pytest.raises(TokenizerMismatchError, match="expected xxh3:00000000000000bb; got xxh3:0000"):
        load_cache(cache, "xxh3:00000000000000bb")


def test_a_manifest_of_another_file_is_refused(cache: Path) -> None:
    """The cache was replaced without its manifest."""
    write_lookup(cache, table_of({(1, 2): {3: 4}}), force=True)
    with pytest.raises(StoreForeignError, match="written for another file") as caught:
        load_cache(cache)
    assert "cache import" in str(caught.value)


def test_a_manifest_is_kept_unless_forced(cache: Path) -> None:
    manifest = read_manifest(cache)
    assert manifest is not None
    with pytest.raises(InvalidInputError, match="exists"):
        write_manifest(cache, manifest)
    write_manifest(cache, replace(manifest, made_by="again"), force=True)
    assert "again" in manifest_path(cache).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bytes": 93}, "bytes 93, the cache has 92"),
        ({"xxh3": "0" * 16}, "xxh3 0000000000000000, the cache has c8b82675bdf2b8ac"),
        ({"ngrams": {"2": 3}}, "ngrams {2: 3}, the cache has {1: 1, 2: 2}"),
        ({"pairs": 5}, "pairs 5, the cache has 4"),
        ({"count": 9}, "count 9, the cache has 8"),
        ({"tokenizer": {"fingerprint": "", "vocab_size": 13, "name": ""}}, "of 13, the cache has token 13"),
    ],
)
def test_mismatches_are_reported(cache: Path, change: dict[str, Any], said: str) -> None:
    manifest = Manifest.from_json(json.dumps(json.loads(GOLDEN) | change))
    (found,) = find_mismatches(cache, manifest, read_lookup(cache))
    assert said in found


def test_a_cache_that_was_changed_is_found(cache: Path) -> None:
    manifest = read_manifest(cache)
    raw = bytearray(cache.read_bytes())
    raw[0] ^= 1
    cache.write_bytes(raw)
    assert manifest is not None
    assert [text.split()[3] for text in find_mismatches(cache, manifest, read_lookup(cache))] == ["xxh3"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", StoreForeignError),
        ("[]", StoreForeignError),
        ("{}", StoreForeignError),
        ("[" * 100_000, StoreForeignError),
        ('{"manifest": 2}', StoreForeignError),
        ('{"manifest": true}', StoreForeignError),
        ('{"manifest": 1}', StoreCorruptError),
        (GOLDEN.replace("-static", "-elastic"), StoreCorruptError),
        (GOLDEN.replace("92", "-92"), StoreCorruptError),
        (GOLDEN.replace("92", "92.0"), StoreCorruptError),
        (GOLDEN.replace('"1": 1', '"one": 1'), StoreCorruptError),
        (GOLDEN.replace("sql.bin", "/etc/passwd"), StoreCorruptError),
        (GOLDEN.replace("logs/a.jsonl", "../a.jsonl"), StoreCorruptError),
        (GOLDEN.replace('"sources": [', '"sources": [1,'), StoreCorruptError),
    ],
)
def test_other_files_are_refused(cache: Path, text: str, kind: type[SuffixError]) -> None:
    manifest_path(cache).write_text(text, encoding="utf-8")
    with pytest.raises(kind, match=r"sql\.bin\.manifest\.json: "):
        read_manifest(cache)


@given(at=st.integers(0, len(GOLDEN) - 1), byte=st.integers(0, 255), cut=st.booleans())
def test_no_damage_breaks_the_reader(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int, cut: bool
) -> None:
    raw = bytearray(GOLDEN.encode())
    raw[at] = byte
    folder = tmp_path_factory.mktemp("manifest")
    manifest_path(folder / "sql.bin").write_bytes(raw[:at] if cut else raw)
    with suppress(StoreForeignError, StoreCorruptError):
        assert read_manifest(folder / "sql.bin") is not None


def test_absolute_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="relative"):
        Manifest(CacheFormat.STATIC, "a.bin", 0, "", {}, 0, 0, sources=(SourceFile("/home/a", 0, ""),))
    with pytest.raises(StoreError, match="cannot read"):
        SourceFile.of(tmp_path / "gone")

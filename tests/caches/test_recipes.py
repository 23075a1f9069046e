"""Recipes: reproducible builds, and preloading into a service."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from suffixsvc import SuffixCache
from suffixsvc.errors import (
    InvalidConfigError,
    InvalidInputError,
    InvalidNamespaceError,
    TokenizerMismatchError,
    UnknownNamespaceError,
)
from suffixsvc_caches.logs import ReadOptions
from suffixsvc_caches.logs.formats.values import read_values
from suffixsvc_caches.lookup.files import read_lookup
from suffixsvc_caches.manifest import find_mismatches, read_manifest
from suffixsvc_caches.recipes import READY_MADE, Recipe, find_recipe, make_recipe, preload
from suffixsvc_cli import main
from suffixsvc_client import ClientConfig, SuffixClient
from support.lookup_tables import records_of_table
from support.serving import ServeProcess, socket_dir

FINGERPRINT = "xxh3:0123456789abcdef"
WROTE = [40, 11, 12, 13, 14, 15, 16, 17, 18, 19]
RECIPE = """
about = "a test"
tokenizer = "{fingerprint}"
[logs]
paths = ["../log.jsonl"]
kind_field = "meta.split"
kinds = ["train"]
[static]
budget = "64K"
context_tokens = 2
"""


def record(tokens: list[int], split: str = "train", **more: Any) -> str:
    call = {
        "agent": "a",
        "session_id": "s",
        "prompt_token_ids": [1, 2, 3],
        "response_token_ids": tokens,
        "tokenizer": FINGERPRINT,
        "meta": {"split": split},
    }
    return json.dumps(call | more) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recipe and its log, without outputs."""
    log = (
        [record(WROTE)] * 3 + [record([*WROTE[:4], 99 + i]) for i in range(4)] + [record([7, 7], "held_out")]
    )
    (tmp_path / "log.jsonl").write_text("".join(log))
    own = tmp_path / "own"
    own.mkdir()
    (own / "recipe.toml").write_text(RECIPE.format(fingerprint=FINGERPRINT))
    return own


def test_what_a_recipe_makes(folder: Path) -> None:
    recipe = find_recipe(str(folder))
    made = make_recipe(recipe)
    assert (made.calls, made.tokens) == (5, 10 + 4 * 5)  # duplicates once, held-out calls never
    manifest = read_manifest(recipe.static)
    table = read_lookup(recipe.static)
    assert manifest is not None
    assert manifest.tokenizer.fingerprint == FINGERPRINT
    assert list(find_mismatches(recipe.static, manifest, table)) == []
    records = records_of_table(table)
    assert records[(11, 12)] == {13: 5}
    assert records[(2, 3)] == {40: 5}  # the n-gram begins in the prompt
    assert not any(7 in followers for followers in records.values())
    calls = [json.loads(line) for line in gzip.decompress(recipe.corpus.read_bytes()).splitlines()]
    assert calls[0]["response_token_ids"] == WROTE
    assert {tuple(call["prompt_token_ids"]) for call in calls} == {(1, 2, 3)}


def test_it_makes_the_same_bytes_and_keeps_what_is_there(folder: Path) -> None:
    recipe = find_recipe(str(folder))
    make_recipe(recipe)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(InvalidInputError, match="exists"):
        make_recipe(recipe)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    make_recipe(recipe, force=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_logs_are_read_twice_at_most(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def read_and_note(path: Path, *more: Any, **options: Any) -> Any:
        read.append(path)
        return read_values(path, *more, **options)

    monkeypatch.setattr("suffixsvc_caches.logs.read.read_values", read_and_note)
    assert make_recipe(find_recipe(str(folder))).calls == 5
    assert 1 <= len(read) <= 2


def test_a_recipe_writes_all_files_or_none(folder: Path) -> None:
    recipe = find_recipe(str(folder))
    recipe.static.mkdir()
    for force in (False, True):
        with pytest.raises(InvalidInputError):
            make_recipe(recipe, force=force)
    recipe.static.rmdir()
    assert [path.name for path in folder.iterdir()] == ["recipe.toml"]
    make_recipe(recipe)
    before = recipe.corpus.read_bytes()
    recipe.static.unlink()
    recipe.static.mkdir()
    with pytest.raises(InvalidInputError):
        make_recipe(replace(recipe, reading=ReadOptions()), force=True)
    assert recipe.corpus.read_bytes() == before


@pytest.mark.parametrize("name", READY_MADE)
def test_the_ready_made_ones_are_what_their_logs_make(name: str, tmp_path: Path) -> None:
    ready = find_recipe(name)
    made = tmp_path / name
    made.mkdir()
    again = replace(ready, folder=made)
    make_recipe(again)
    for file in (again.static, again.corpus):
        assert file.read_bytes() == (ready.folder / file.name).read_bytes(), file.name
        assert file.stat().st_size < 1_000_000


def test_ids_of_another_tokenizer_are_refused(folder: Path) -> None:
    recipe = replace(find_recipe(str(folder)), tokenizer="xxh3:ffffffffffffffff")
    with pytest.raises(TokenizerMismatchError):
        make_recipe(recipe)
    assert [path.name for path in folder.iterdir()] == ["recipe.toml"]  # the cache had been written already


def test_a_corpus_of_another_tokenizer_is_not_preloaded(folder: Path) -> None:
    make_recipe(find_recipe(str(folder)))
    (folder / "recipe.toml").write_text(RECIPE.format(fingerprint="xxh3:ffffffffffffffff"))
    with SuffixCache() as cache, pytest.raises(TokenizerMismatchError):
        preload(cache, [str(folder)])


def test_a_truncated_corpus_is_not_preloaded(folder: Path) -> None:
    """The readable part of a truncated file was loaded and recorded as complete."""
    recipe = find_recipe(str(folder))
    make_recipe(recipe)
    recipe.corpus.write_bytes(recipe.corpus.read_bytes()[:-20])
    with SuffixCache() as cache:
        for _ in range(2):
            with pytest.raises(InvalidInputError, match=r"own\.corpus\.jsonl\.gz"):
                preload(cache, [str(folder)])


def test_two_recipes_of_one_name(folder: Path, tmp_path: Path) -> None:
    """They shared a namespace, which each start loaded with one of them."""
    make_recipe(find_recipe(str(folder)))
    other = tmp_path / "other" / "own"
    shutil.copytree(folder, other)
    with SuffixCache() as cache:
        with pytest.raises(InvalidConfigError, match="recipes must have different names, not both own"):
            preload(cache, [str(folder), str(other)])
        assert preload(cache, [str(folder), str(folder)]) == ["preload/own"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have about"),
        ("about = [", "cannot read"),
        (RECIPE + "\nodd = 1", "unknown"),
        ("more = 1" + RECIPE, "unknown"),
        (RECIPE.replace('"64K"', '"much"'), "budget"),
        (RECIPE.replace("kinds =", "kindz ="), "kindz"),
    ],
)
def test_a_bad_recipe_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "recipe.toml").write_text(text)
    with pytest.raises(InvalidConfigError, match=message) as caught:
        find_recipe(str(tmp_path))
    assert "recipe.toml" in str(caught.value)


def test_no_such_recipe() -> None:
    with pytest.raises(InvalidConfigError, match="sql, json, code"):
        find_recipe("cobol")


def drafted(cache: SuffixCache, path: str, tokenizer: str | None) -> list[int]:
    session = cache.namespace(path, tokenizer=tokenizer).open_session([1, 2, 3])
    try:
        return session.step([40, 11, 12], max_draft_tokens=4, verify_cost=0.01).token_ids.tolist()
    finally:
        session.close(commit=False)


def test_sessions_of_its_tokenizer_draft_from_it(folder: Path) -> None:
    make_recipe(find_recipe(str(folder)))
    with SuffixCache() as cache:
        assert drafted(cache, "mine", FINGERPRINT) == []
        paths = preload(cache, [str(folder)])
        assert paths == ["preload/own"]
        assert drafted(cache, "mine", FINGERPRINT) == []
        cache.read_by_default(paths)
        assert drafted(cache, "mine", FINGERPRINT)[:1] == [13]
        assert drafted(cache, "another", FINGERPRINT)[:1] == [13]
        assert drafted(cache, "foreign", "xxh3:ffffffffffffffff") == []
        assert drafted(cache, "unknown", None) == []
        with pytest.raises(UnknownNamespaceError):
            cache.read_by_default(["missing"])


def test_more_than_a_session_reads_are_refused() -> None:
    """The eighth was dropped without notice."""
    with SuffixCache() as cache:
        for i in range(8):
            cache.namespace(f"corpus/{i}", tokenizer=FINGERPRINT).add_output([40, 11, 12, 13])
            cache.namespace(f"other/{i}", tokenizer="xxh3:ffffffffffffffff").add_output([40, 11, 12, 13])
        seven = [f"{name}/{i}" for name in ("corpus", "other") for i in range(7)]
        with pytest.raises(InvalidConfigError, match="read by default") as caught:
            cache.read_by_default([*seven, "corpus/7"])
        assert "at most 7 per tokenizer" in caught.value.message
        assert caught.value.got == f"8 of {FINGERPRINT}"
        assert drafted(cache, "mine", FINGERPRINT) == []  # none of them was accepted
        cache.read_by_default([*seven, "corpus/0"])
        assert drafted(cache, "mine", FINGERPRINT)[:1] == [13]


def test_serve_refuses_more_recipes_than_a_session_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [tmp_path / f"recipe{i}" for i in range(8)]
    for folder in folders:
        folder.mkdir()
        (folder / "recipe.toml").write_text(RECIPE.format(fingerprint=FINGERPRINT))
    data = tmp_path / "data"
    listen = ["--listen", f"unix:{tmp_path}/s"]
    assert main(["serve", "--data", str(data), *listen, "--preload", ",".join(map(str, folders))]) == 2
    assert f"at most 7 per tokenizer; got 8 of {FINGERPRINT}" in capsys.readouterr().err
    assert not data.exists()


def test_default_namespaces_are_read_only(folder: Path) -> None:
    make_recipe(find_recipe(str(folder)))
    with SuffixCache() as cache:
        cache.read_by_default(preload(cache, [str(folder)]))
        own = cache.namespace("preload/own")
        with pytest.raises(InvalidNamespaceError, match="only read"):
            own.open_session([1, 2, 3])
        with pytest.raises(InvalidNamespaceError, match="only read"):
            own.add_output([1, 2, 3])
        assert own.stats().outputs == 5


def test_other_outputs_of_a_recipe_namespace_are_removed(folder: Path, tmp_path: Path) -> None:
    """Without --preload clients can write there; the next start with --preload reloads the corpus."""
    make_recipe(find_recipe(str(folder)))
    with SuffixCache(tmp_path / "data") as cache:
        preload(cache, [str(folder)])
        cache.namespace("preload/own").add_output([40, 11, 12, 66])
    with SuffixCache(tmp_path / "data") as cache:
        preload(cache, [str(folder)])
        assert cache.namespace("preload/own").stats().outputs == 5


def test_it_is_loaded_once_and_again_when_it_changed(folder: Path, tmp_path: Path) -> None:
    recipe = find_recipe(str(folder))
    make_recipe(recipe)
    for _ in range(2):
        with SuffixCache(tmp_path / "data") as cache:
            preload(cache, [str(folder)])
            assert cache.namespace("preload/own").stats().outputs == 5
            assert cache.stats().last_lsn == 5
    (tmp_path / "log.jsonl").write_text(record([5, 6, 7]) + record([5, 6, 8]))
    make_recipe(recipe, force=True)
    with SuffixCache(tmp_path / "data") as cache:
        preload(cache, [str(folder)])
        assert cache.namespace("preload/own").stats().outputs == 2
        cache.check()


def test_a_recipe_without_a_corpus(folder: Path) -> None:
    with SuffixCache() as cache, pytest.raises(InvalidConfigError, match="must have a corpus"):
        preload(cache, [str(folder)])


def test_serve_preloads(folder: Path) -> None:
    make_recipe(find_recipe(str(folder)))
    patient = ClientConfig(step_timeout_s=300, open_timeout_s=300)
    with socket_dir() as place:
        service = ServeProcess(place, "--preload", f"{folder},sql")
        with service.start(), SuffixClient(service.address, patient) as client:
            assert {each.path for each in client.namespaces()} == {"preload/own", "preload/sql"}
            session = client.namespace("mine", FINGERPRINT).open_session([1, 2, 3])
            draft = session.step([40, 11, 12], max_draft_tokens=4, verify_cost=0.01)
            assert draft.token_ids.tolist()[:1] == [13]


def test_the_adapters_page_reads_the_namespace_that_preloading_uses() -> None:
    """docs/adapters.md gave `recipes/sql` as an example, a namespace that does not exist: sessions that read
    it drafted nothing from the recipe."""
    page = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith("| `SUFFIXSVC_ADAPTER_READS`"))
    with SuffixCache() as cache:
        (path,) = preload(cache, ["sql"])
    example = row.split("|")[2].strip().strip("`").split(",")
    assert path in example
    assert f"`{path}`" in row.split("|")[3]


def test_serve_refuses_an_unknown_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "serve",
        "--data",
        str(tmp_path / "d"),
        "--listen",
        f"unix:{tmp_path}/s",
        "--preload",
        "cobol",
    ]
    assert main(arguments) == 2
    assert "a recipe must be sql" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_the_verb(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "make", str(folder), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made[str(folder)]["calls"] == 5
    assert main(["cache", "make", str(folder)]) == 2
    assert "exists" in capsys.readouterr().err


def test_a_recipe_knows_its_place(folder: Path) -> None:
    recipe = Recipe.load(folder)
    assert recipe.name == "own"
    assert recipe.static == folder / "own.static.bin"
    assert recipe.logs == (folder / "../log.jsonl",)

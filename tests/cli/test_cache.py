"""``suffixsvc cache`` on real files."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import suffixsvc_cli as cli
from suffixsvc_caches.lookup.files import read_lookup, write_lookup
from suffixsvc_caches.lookup.table import LookupTable
from suffixsvc_caches.manifest import CacheFormat, Manifest, TokenizerNote, manifest_path, write_manifest
from support.command_line import run_verb
from support.lookup_tables import records_of_table, table_of
from support.tiny_tokenizer import EOS, write_gguf, write_tokenizer

LOG = Path(__file__).resolve().parents[1] / "data" / "recorded_demo.jsonl.gz"
TABLE = table_of({(1, 2): {3: 5, 4: 2}, (7, 7): {8: 1}})


def run(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return run_verb("cache", *args)


def run_json(*args: str | Path) -> dict:
    result = run(*args, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    path = tmp_path / "small.bin"
    write_lookup(path, TABLE)
    return path


def described(path: Path, table: LookupTable, fingerprint: str) -> None:
    write_manifest(
        path, Manifest.of(path, table, CacheFormat.STATIC, tokenizer=TokenizerNote(fingerprint, 9, "nine"))
    )


def test_inspect(cache: Path) -> None:
    result = run("inspect", cache)
    assert result.returncode == 0, result.stderr
    assert "static cache, 64 bytes, 2 n-grams, 3 followers, counted 8 times" in result.stdout
    assert "1 2" in result.stdout
    assert "warning: there is no manifest" in result.stdout
    found = run_json("inspect", cache, "--top", "1", "--as", "dynamic")
    assert found["static"] is False
    assert [record["ngram"] for record in found["top"]] == [[1, 2]]
    described(cache, TABLE, "xxh3:00")
    result = run("inspect", cache)
    assert "tokenizer xxh3:00 nine (9 tokens)" in result.stdout
    assert "warning" not in result.stdout


def test_inspect_ignores_a_manifest_of_another_file(cache: Path, tmp_path: Path) -> None:
    """It showed whose tokens the other file has, and called a dynamic cache static."""
    described(cache, TABLE, "xxh3:00")
    cache.rename(tmp_path / "moved.bin")
    manifest_path(cache).rename(manifest_path(tmp_path / "moved.bin"))
    assert "warning" not in run("inspect", tmp_path / "moved.bin").stdout  # it is still that file's
    other = table_of({(1, 2): {3: 5, 4: 2}, (7,): {8: 1}})
    write_lookup(tmp_path / "moved.bin", other, force=True)
    assert (tmp_path / "moved.bin").stat().st_size == 64
    result = run("inspect", tmp_path / "moved.bin", "--tokenizer", write_tokenizer(tmp_path / "t.json"))
    assert result.returncode == 0, result.stderr
    assert "moved.bin: dynamic cache" in result.stdout
    assert "tokenizer xxh3:00" not in result.stdout
    assert "warning: moved.bin.manifest.json belongs to another file" in result.stdout
    found = run_json("inspect", tmp_path / "moved.bin")
    assert found["manifest"] is None
    assert found["static"] is False


@pytest.mark.parametrize("kind", ["tokenizer.json", "gguf"])
def test_inspect_shows_ids_beyond_the_vocabulary(kind: str, tmp_path: Path) -> None:
    """It ended with an error where it should have warned; a tokenizer.json showed no text at all."""
    tokenizer = write_gguf(tmp_path / "t.gguf") if kind == "gguf" else write_tokenizer(tmp_path / "t.json")
    cache = tmp_path / "odd.bin"
    write_lookup(cache, table_of({(72, 105): {33: 5}, (72, 999_999): {105: 4, 2**31 - 1: 2}}))
    result = run("inspect", cache, "--tokenizer", tokenizer)
    assert result.returncode == 0, result.stderr
    assert "'Hi'" in result.stdout
    assert "'H' 999999" in result.stdout
    assert "'i' 67%, 2147483647 33%" in result.stdout
    assert "warning: token 2147483647 is beyond the tokenizer's 2" in result.stdout
    found = run_json("inspect", cache, "--tokenizer", tokenizer)
    assert [record["text"] for record in found["top"]] == [None, "Hi"]


def test_verify_checks_every_file(cache: Path, tmp_path: Path) -> None:
    """It stopped at the first manifest, or file, that cannot be read."""
    described(cache, TABLE, "")
    odd = tmp_path / "odd.bin"
    odd.write_bytes(cache.read_bytes())
    manifest_path(odd).write_text("{}")
    torn = tmp_path / "torn.bin"
    torn.write_bytes(cache.read_bytes()[:-1])
    result = run("verify", odd, tmp_path / "none.bin", torn, cache)
    assert result.returncode == 2
    assert result.stdout.splitlines()[:3] == [
        f"{odd}: not whole, 2 n-grams",
        f'  {manifest_path(odd)}: not a manifest; expected a JSON object with "manifest"',
        f"{tmp_path / 'none.bin'}: not whole, 0 n-grams",
    ]
    assert "cannot read" in result.stdout
    assert f"{torn}: not whole, 1 n-grams" in result.stdout
    assert f"{cache}: whole, 2 n-grams" in result.stdout
    plain = json.loads(run("verify", odd, cache, "--json").stdout)
    assert [each["whole"] for each in plain] == [False, True]


def test_control_characters_of_a_manifest_are_escaped(cache: Path) -> None:
    name = TokenizerNote("xxh3:00", 9, "\x1b[31m\ud800nine")
    write_manifest(
        cache, Manifest.of(cache, TABLE, CacheFormat.STATIC, tokenizer=name, made_by="\x1b]0;me\a")
    )
    result = run("inspect", cache)
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stdout
    assert "tokenizer xxh3:00 \ufffd[31m\ufffdnine (9 tokens)" in result.stdout


def test_verify_names_the_byte(cache: Path, tmp_path: Path) -> None:
    described(cache, TABLE, "")
    assert run("verify", cache).stdout == f"{cache}: whole, 2 n-grams\n"
    torn = tmp_path / "torn.bin"
    torn.write_bytes(cache.read_bytes()[:-1])
    result = run("verify", cache, torn)
    assert result.returncode == 2
    assert "byte 36: the file ends after 0 of 1 followers (llama.cpp aborts)" in result.stdout
    assert [each["whole"] for each in json.loads(run("verify", cache, torn, "--json").stdout)] == [
        True,
        False,
    ]
    write_lookup(cache, table_of({(1, 2): {3: 5, 4: 2}, (7, 7): {9: 1}}), force=True)
    result = run("verify", cache)
    assert result.returncode == 2
    assert "the manifest says xxh3" in result.stdout
    assert "the manifest says a vocabulary of 9, the cache has token 9" in result.stdout


def test_merge_and_diff(cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "both.bin"
    assert run("merge", cache, cache, out).returncode == 0
    assert records_of_table(read_lookup(out)) == {(1, 2): {3: 10, 4: 4}, (7, 7): {8: 2}}
    assert run("verify", out).returncode == 0
    before = out.read_bytes()
    refused = run("merge", cache, out)
    assert refused.returncode == 2
    assert "exists" in refused.stderr
    assert out.read_bytes() == before
    assert run("merge", cache, out, "--force").returncode == 0
    assert run("diff", cache, out).returncode == 0
    out.write_bytes(before)
    stale = run("diff", cache, out)
    assert stale.returncode == 2
    assert "both.bin.manifest.json was written for another file" in stale.stderr
    (tmp_path / "both.bin.manifest.json").unlink()
    result = run("diff", cache, out)
    assert result.returncode == 1
    assert "2 in both" in result.stdout
    assert "1 2 -> 3: 5 -> 10" in result.stdout
    assert run("merge", out).returncode == 2


def test_caches_of_two_tokenizers_are_not_merged(cache: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.bin"
    write_lookup(other, TABLE)
    described(cache, TABLE, "xxh3:00")
    described(other, TABLE, "xxh3:01")
    result = run("merge", cache, other, tmp_path / "out.bin")
    assert result.returncode == 2
    assert "expected xxh3:00; got xxh3:01" in result.stderr
    assert not (tmp_path / "out.bin").exists()
    assert not manifest_path(tmp_path / "out.bin").exists()


def test_forecast_draws_hit_rate_against_size(tmp_path: Path) -> None:
    tokens = [
        token
        for line in subprocess.run(["gunzip", "-c", LOG], capture_output=True, check=True).stdout.splitlines()
        for token in json.loads(line)["response_token_ids"]
    ]
    counted: dict[tuple[int, int], dict[int, int]] = {}
    for a, b, c in zip(tokens, tokens[1:], tokens[2:], strict=False):
        followers = counted.setdefault((a, b), {})
        followers[c] = followers.get(c, 0) + 1
    cache, picture = tmp_path / "demo.bin", tmp_path / "demo.svg"
    write_lookup(cache, table_of(counted))
    stats = ("--program", "stats", "--ctx", "256")
    found = run_json("forecast", cache, LOG, *stats, "--plot", picture)
    chunks = (len(tokens) - 1) // 256
    assert found["all"]["n_predict"] == len(tokens) - len(tokens) % 256
    assert found["all"]["tokens"] == 255 * chunks
    assert found["all"]["n_accept"] > found["without"]["n_accept"]
    sizes = [each["bytes"] for each in found["sizes"]]
    assert sizes == sorted(sizes)
    assert found["sizes"][-1] | {"bytes": 0} == found["all"] | {"bytes": 0}
    text = picture.read_text(encoding="utf-8")
    assert text.startswith("<svg")
    assert text.count("<circle") == 2 * len(sizes)

    assert run("forecast", cache, LOG, *stats, "--plot", picture).returncode == 2  # it exists
    assert run("forecast", cache, LOG, "--program", "stats").returncode == 2  # no log has 4096 tokens
    assert "expected server, lookup or stats" in run("forecast", cache, LOG, "--program", "x").stderr
    assert "batch input no must be a file" in run("forecast", cache, LOG, "--batch-input", "no").stderr


def test_forecast_simulates_the_server_by_default(cache: Path) -> None:
    """They were of llama-lookup-stats, which learns while it runs; the server does not."""
    found = run_json("forecast", cache, LOG)
    assert found["program"] == "llama-server"
    assert found == run_json("forecast", cache, LOG, "--program", "server")
    refused = run("forecast", cache, LOG, "--ctx", "256")
    assert refused.returncode == 2
    assert "--ctx must be given with --program stats only; got server" in refused.stderr


def test_forecast_of_a_dynamic_cache(tmp_path: Path) -> None:
    counts = tmp_path / "dynamic.bin"
    write_lookup(counts, table_of({(5,): {6: 9}, (5, 6): {7: 9}}))
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"prompt_token_ids": [1, 5], "response_token_ids": [9, 5, 6, 7]}) + "\n")
    found = run_json("forecast", counts, log, "--program", "lookup")
    assert (found["all"]["n_drafted"], found["all"]["n_accept"]) == (2, 2)
    assert found["without"]["n_drafted"] == 0
    assert "dynamic cache" in run("forecast", counts, log, "--plot", tmp_path / "p.svg").stderr


def test_a_tokenizer_json_needs_its_special_tokens(tmp_path: Path) -> None:
    """What was built with --bos and --eos could not be looked at: only build had the options."""
    log = tmp_path / "log.jsonl"
    log.write_text('{"response": "SELECT name FROM singer ORDER BY name"}\n' * 9)
    cache, out, source = tmp_path / "s.bin", tmp_path / "out.bin", tmp_path / "tokenizer.json"
    tokenizer = ("--tokenizer", write_tokenizer(source), "--bos", EOS, "--eos", EOS)
    assert cli.main(["build", *map(str, (log, "--lookup-static", cache, *tokenizer))]) == 0
    for args in (
        ("inspect", cache),
        ("forecast", cache, log),
        ("diff", cache, cache),
        ("import", cache, out),
    ):
        assert "has another tokenizer" in run(*args, "--tokenizer", source).stderr
        assert run(*args, *tokenizer).returncode == 0


def test_a_folder_is_refused_as_output(cache: Path) -> None:
    """A traceback, since "." has no name."""
    for verb in (("prune", cache), ("merge", cache)):
        result = run(*verb, ".")
        assert result.returncode == 2
        assert "must be the name of a file in a folder that exists; got a folder" in result.stderr


@pytest.mark.model
def test_tokenizers_that_do_not_fit_are_refused(cache: Path) -> None:
    import suffixsvc_models as models

    described(cache, TABLE, "xxh3:00")
    model = models.path("smollm2-135m")
    for args in (("inspect", cache), ("forecast", cache, LOG), ("diff", cache, cache)):
        result = run(*args, "--tokenizer", model)
        assert result.returncode == 2
        assert "has another tokenizer; expected xxh3:" in result.stderr

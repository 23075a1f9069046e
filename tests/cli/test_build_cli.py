"""``suffixsvc build``: from a log of texts to caches, and what it refuses."""

from __future__ import annotations

import dataclasses
import inspect
import json
import resource
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import suffixsvc_cli as cli
from suffixsvc import SuffixCache
from suffixsvc_caches.building import run as run_module
from suffixsvc_caches.logs import ReadOptions
from suffixsvc_caches.logs.base.options import LogFilter
from suffixsvc_caches.lookup.files import read_lookup
from suffixsvc_caches.manifest import manifest_path, read_manifest
from support.build_logs import synthetic_calls, write_log
from support.engine_parts import parts_of
from support.lookup_tables import records_of_table
from support.ngram_oracle import follows
from support.small_disk import files_up_to
from support.tiny_tokenizer import write_tokenizer

RESPONSES = [
    "SELECT name FROM singer ORDER BY name",
    "SELECT name, age FROM singer",
    '{"tool": "search", "query": "the other term"}',
    "SELECT name FROM singer ORDER BY name",
]

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code, stdout, stderr."""

    def call(*args: object) -> tuple[int, str, str]:
        code = cli.main(["build", *map(str, args)])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def texts(tmp_path: Path) -> list[object]:
    """The arguments of a build from texts."""
    log = tmp_path / "log.jsonl"
    lines = [
        json.dumps({"prompt": f"question {i}", "response": text, "agent": "a"})
        for i, text in enumerate(RESPONSES)
    ]
    log.write_text("\n".join([*lines, "{broken", ""]))
    return [log, "--tokenizer", write_tokenizer(tmp_path / "tokenizer.json", merges=True)]


def test_an_empty_cache_is_a_warning(run: Run, texts: list[object], tmp_path: Path) -> None:
    s, d = tmp_path / "s.bin", tmp_path / "d.bin"
    code, _, wrong = run(*texts, "--lookup-static", s, "--min-count", 1000)
    assert (code, s.stat().st_size) == (0, 0), wrong
    assert f"{s} is empty" in wrong
    code, _, wrong = run(*texts, "--lookup-dynamic", d)
    assert code == 0
    assert "empty" not in wrong


def test_the_warning_names_only_given_options(run: Run, tmp_path: Path) -> None:
    """A log of one response of 2 tokens makes no 2-gram with a follower. The warning blamed --min-count, a
    budget or --compact, none of which was given."""
    log, s = tmp_path / "short.jsonl", tmp_path / "s.bin"
    log.write_text('{"response_token_ids": [7, 8]}\n')
    code, _, wrong = run(log, "--lookup-static", s)
    assert (code, s.stat().st_size) == (0, 0), wrong
    assert f"{s} is empty: its shortest n-gram has 2 tokens, and no text is longer" in wrong
    assert "--" not in wrong
    code, _, wrong = run(log, "--lookup-static", s, "--compact", "--force")
    assert code == 0
    assert "frequent enough for --compact" in wrong
    assert "--min-count" not in wrong


def test_from_texts_to_caches(run: Run, texts: list[object], tmp_path: Path) -> None:
    s, d = tmp_path / "s.bin", tmp_path / "d.bin"
    outputs = ["--lookup-static", s, "--lookup-dynamic", d, "--data", tmp_path / "data", "--namespace", "a/b"]
    code, output, wrong = run(*texts, *outputs, "--json", "--exact-counts", "--workers", 2)
    assert (code, wrong) == (0, "")
    from suffixsvc_caches.tokenizers.load import load_tokenizer

    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    ids = [(each.tolist(), 0) for each in tokenizer.encode_batch(RESPONSES)]
    plain = json.loads(output)
    assert (plain["tokens"], plain["calls"], plain["duplicates"]) == (sum(len(text) for text, _ in ids), 4, 0)
    assert plain["tokenizer"] == tokenizer.fingerprint
    assert plain["read"]["counts"]["malformed"] == 1
    assert plain["corpus"] == {"namespace": "a/b", "outputs": 4}
    by_order = [follows(ids, n) for n in range(1, 5)]
    assert records_of_table(read_lookup(s)) == by_order[1]
    assert records_of_table(read_lookup(d)) == {
        ngram: counts for order in by_order for ngram, counts in order.items()
    }
    assert plain["static"]["bytes"] == s.stat().st_size
    assert plain["static"]["ngrams"] == {"2": len(by_order[1])}
    assert plain["dynamic"]["pairs"] == sum(len(counts) for order in by_order for counts in order.values())
    with SuffixCache(tmp_path / "data") as cache:
        held = Counter(tokenizer.decode(each.output.token_ids) for each in parts_of(cache).store.scan("a/b"))
    assert held == Counter(RESPONSES)
    assert not list(tmp_path.glob("*.work*"))


def test_text_output(run: Run, texts: list[object], tmp_path: Path) -> None:
    code, output, wrong = run(*texts, "--lookup-static", tmp_path / "s.bin", "--dedupe")
    assert (code, wrong) == (0, "")
    for word in ("1 malformed", "tokens counted", "1 duplicates removed", "static cache", "2-grams"):
        assert word in output, output


def test_the_same_bytes_twice_and_from_ids(run: Run, texts: list[object], tmp_path: Path) -> None:
    for i in range(2):
        assert (
            run(*texts, "--lookup-dynamic", tmp_path / f"{i}.bin", "--context", 3, "--workers", i + 1)[0] == 0
        )
    assert (tmp_path / "0.bin").read_bytes() == (tmp_path / "1.bin").read_bytes()
    log = write_log(tmp_path / "ids.jsonl", synthetic_calls(1, 50))
    assert run(log, "--lookup-dynamic", tmp_path / "ids.bin", "--budget", "1K")[0] == 0
    assert 0 < (tmp_path / "ids.bin").stat().st_size <= 1024
    words = np.fromfile(tmp_path / "ids.bin", "<i4").reshape(-1, 7)
    assert (words[:, 4] == 1).all()


def test_existing_files_are_kept_without_force(run: Run, texts: list[object], tmp_path: Path) -> None:
    (tmp_path / "s.bin").write_bytes(b"mine")
    before = sorted(path.name for path in tmp_path.iterdir())
    code, _, wrong = run(
        *texts, "--lookup-static", tmp_path / "s.bin", "--lookup-dynamic", tmp_path / "d.bin"
    )
    assert code == 2
    assert wrong.splitlines() == [
        f"suffixsvc build: {tmp_path / 's.bin'} exists. Give another name, or --force."
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert run(*texts, "--lookup-static", tmp_path / "s.bin", "--force")[0] == 0
    assert (tmp_path / "s.bin").read_bytes() != b"mine"


def test_force_replaces_files_and_add_adds(run: Run, texts: list[object], tmp_path: Path) -> None:
    """--force was both: who replaced a lookup cache loaded its corpus a second time."""
    args = [*texts, "--lookup-static", tmp_path / "s.bin", "--data", tmp_path / "data"]

    def held() -> int:
        with SuffixCache(tmp_path / "data", background=False) as cache:
            return cache.namespace("corpus").stats().outputs

    assert run(*args)[0] == 0
    once = held()
    code, _, wrong = run(*args, "--force")
    assert code == 2
    assert f"{once} outputs" in wrong
    assert wrong.rstrip().endswith("Name another namespace, or add to it with --add.")
    assert held() == once
    code, _, wrong = run(*args, "--add")
    assert code == 2
    assert "s.bin exists" in wrong
    assert run(*args, "--add", "--force")[0] == 0
    assert held() == 2 * once


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "a build must have"),
        (["--lookup-static", "s.bin", "--lookup-dynamic", "./s.bin"], "must have different files"),
        (["--lookup-static", "s.bin", "--lookup-dynamic", "no/../s.bin"], "must have different files"),
        (["--lookup-static", "s.bin", "--lookup-dynamic", "s.bin.manifest.json"], "different files"),
        (["--lookup-static", "s.bin", "--memory", "lots"], "--memory must be a number of bytes"),
        (["--lookup-static", "s.bin", "--memory", f"{'9' * 400}T"], "--memory must be at most"),
        (["--lookup-static", "s.bin", "--memory", "1M"], "memory must be"),
        (["--lookup-static", "s.bin", "--memory", "1000000T"], "memory_bytes must be available"),
        (["--lookup-static", "s.bin", "--budget", "27"], "the budget must be 28 bytes or more"),
        (["--lookup-static", "s.bin", "--budget", "-1"], "--budget must be a number of bytes"),
        (["--lookup-static", "s.bin", "--top", "-1"], "min_count must be 1 .."),
        (["--lookup-static", "s.bin", "--top", str(1 << 40)], "min_count must be 1 .."),
        (["--lookup-static", "s.bin", "--min-count", "0"], "min_count must be 1 .."),
        (["--lookup-static", "s.bin", "--engine", "abacus"], "engine must be local or ray"),
        (["--lookup-static", "s.bin", "--format", "runes"], "runes"),
        (["--lookup-static", "s.bin", "--since", "yesterday"], "yesterday"),
        (["--lookup-static", "s.bin", "--split", "never"], "never"),
        (["--lookup-static", "s.bin", "--agent-field", "absent"], "absent"),
        (["--lookup-static", "s.bin", "--tokenizer", "missing.json"], "must be a GGUF"),
        (["--lookup-static", "s.bin", "--eos", "<|nothing|>"], "eos"),
        (["--lookup-static", "s.bin", "--strict"], "log.jsonl:5"),
        (["--lookup-static", "none/s.bin"], "got no folder none"),
        (["--lookup-static", "."], "got a folder"),
        (["--lookup-static", "s.bin", "--add"], "--data or --server must be given with --add"),
        (["--data", "data", "--server", "unix:/s"], "either a data folder or a server"),
        (["--data", "data", "--namespace", "/"], "namespace"),
        (["--server", "unix:missing.sock"], "missing.sock"),
        (["missing.jsonl", "--lookup-static", "s.bin"], "log missing.jsonl must be a file or a folder"),
        (["--lookup-static", "s.bin", "--work", "."], "must be a work folder"),
    ],
)
def test_a_bad_option_is_one_line_and_leaves_nothing(
    args: list[str], says: str, run: Run, texts: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    code, output, wrong = run(*texts, *args)
    assert (code, output) == (2, ""), wrong
    (line,) = wrong.splitlines()
    assert line.startswith("suffixsvc build: ")
    assert says in line
    assert sorted(tmp_path.iterdir()) == before


def test_logs_of_nothing(run: Run, tmp_path: Path) -> None:
    """Empty, of no response, junk: one line, and no folder is left for the next try to stumble over."""
    contents = {
        "empty": b"",
        "silent": b'{"response": ""}\n' * 3,
        "junk": b'{"response": 5}\n{]\n',
        "bits": bytes(range(256)) * 9,
    }
    for name, content in contents.items():
        log = tmp_path / f"{name}.jsonl"
        log.write_bytes(content)
        code, _, wrong = run(log, "--lookup-static", tmp_path / "s.bin", "--data", tmp_path / "data")
        assert (code, len(wrong.splitlines())) == (2, 1), wrong
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".jsonl"] * 4


def test_texts_without_a_tokenizer(run: Run, texts: list[object], tmp_path: Path) -> None:
    code, _, wrong = run(texts[0], "--lookup-static", tmp_path / "s.bin")
    assert code == 2
    assert "Give a GGUF or a tokenizer.json with --tokenizer." in wrong
    assert not list(tmp_path.glob("s.bin*"))


def test_a_folder_named_by_a_dot(
    run: Run, texts: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no name that the work folder could be named after."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert run(*texts, "--data", ".")[0] == 0
    assert (tmp_path / "here" / "data.mdb").is_file()


def test_too_little_memory_costs_no_counts(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed build that was given less than it needs took everything that was counted with it."""
    log = write_log(tmp_path / "log.jsonl", synthetic_calls(1, 50))
    args = [log, "--lookup-static", tmp_path / "s.bin", "--json"]
    with monkeypatch.context() as patch:
        patch.setattr("suffixsvc_caches.building.run.merge_runs", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            run(*args)
    assert run(*args, "--memory", "64M", "--workers", 30)[0] == 2
    code, output, _ = run(*args)
    assert code == 0
    plain = json.loads(output)
    assert plain["resumed_tokens"] == plain["tokens"] > 0


@pytest.mark.parametrize("writes", [0, 1])
def test_a_full_disk_names_the_stored_progress(
    writes: int, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said that what was counted is kept, also where not even the first run had room."""
    log = write_log(tmp_path / "log.jsonl", synthetic_calls(1, 50))
    args = [log, "--lookup-static", tmp_path / "s.bin", "--work", tmp_path / "work", "--json"]
    with monkeypatch.context() as patch:
        if writes:  # the disk is full when the caches are written
            merge = run_module.merge_runs

            def merge_then_fill(*args: Any) -> Any:
                found = merge(*args)
                resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
                return found

            patch.setattr(run_module, "merge_runs", merge_then_fill)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        with files_up_to(1 << 20 if writes else 150):
            code, _, wrong = run(*args)
    assert code == 2
    kept = f"The counts are kept in {tmp_path / 'work'}: the same command resumes the build."
    lost = "No counts were stored yet: the same command starts over."
    assert wrong.rstrip().endswith(kept if writes else lost)
    assert (tmp_path / "work").is_dir() == bool(writes)
    code, output, _ = run(*args)
    assert code == 0
    plain = json.loads(output)
    assert plain["resumed_tokens"] == (plain["tokens"] if writes else 0)


@pytest.mark.parametrize("name", ["log.jsonl", "tokenizer.json", "link.jsonl"])
def test_inputs_are_not_overwritten(name: str, run: Run, texts: list[object], tmp_path: Path) -> None:
    """--force made a lookup cache of the only log."""
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "log.jsonl")
    before = (tmp_path / name).read_bytes()
    code, _, wrong = run(*texts, "--lookup-static", tmp_path / name, "--force")
    assert code == 2
    assert "must not be an input" in wrong
    assert (tmp_path / name).read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.jsonl", "log.jsonl", "tokenizer.json"]


def test_paths_that_are_not_utf8(run: Run, tmp_path: Path) -> None:
    """A log whose name is not UTF-8 ended a build with a traceback, when everything was counted."""
    log = write_log(tmp_path / "caf\udce9.jsonl", synthetic_calls(5, 20))
    log.open("a").write("{broken\n")
    cache = tmp_path / "s.bin"
    code, output, wrong = run(log, "--lookup-static", cache)
    assert (code, wrong) == (0, "")
    assert "caf\\udce9.jsonl, line 21" in output
    manifest = read_manifest(cache)
    assert manifest is not None
    assert [source.file for source in manifest.sources] == [log.name]
    assert cli.main(["cache", "verify", str(cache)]) == 0
    assert cli.main(["cache", "inspect", str(cache)]) == 0
    code, _, wrong = run(log, "--lookup-static", tmp_path / "s\udce9.bin")
    assert code == 2
    assert "path must be UTF-8" in wrong
    assert sorted(tmp_path.iterdir()) == [log, cache, manifest_path(cache)]


def test_a_fault_is_one_line(run: Run, tmp_path: Path) -> None:
    """They were broken at 80 columns, in the middle of a path, also in a file."""
    folder = tmp_path / ("long" * 30)
    log = write_log(folder / "calls.jsonl", synthetic_calls(5, 20))
    log.open("a").write("{broken\n")
    output = run(log, "--lookup-static", tmp_path / "s.bin")[1]
    assert any(line.startswith(f"{log}, line 21: ") for line in output.splitlines())


def test_every_read_option_has_a_command_line_option() -> None:
    """docs/logs.md promised --chat-template and --min-length; there were none."""
    from suffixsvc_cli.corpus.build import build

    options = inspect.signature(build).parameters
    wanted = {field.name for kind in (ReadOptions, LogFilter) for field in dataclasses.fields(kind)}
    assert wanted - {"filter", "want_prompt"} <= options.keys()


def test_the_prompts_of_a_batch_come_from_its_input(run: Run, tmp_path: Path) -> None:
    """The same counts as from a log with both in one record, and a manifest that says so."""
    fields = [(str(n), f"question {n}", text) for n, text in enumerate(RESPONSES)]
    logs: dict[str, list[dict[str, Any]]] = {
        "whole.jsonl": [{"prompt": question, "response": text} for _, question, text in fields],
        "out.jsonl": [
            {"custom_id": n, "response": {"status_code": 200, "body": {"choices": [{"text": text}]}}}
            for n, _, text in reversed(fields)
        ],
        "in.jsonl": [{"custom_id": n, "body": {"prompt": question}} for n, question, _ in fields],
    }
    for name, records in logs.items():
        (tmp_path / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    tokenizer = ["--tokenizer", write_tokenizer(tmp_path / "tokenizer.json", merges=True), "--context", 20]

    def counted(log: str, *options: object) -> dict[tuple[int, ...], dict[int, int]]:
        cache = tmp_path / f"{len(list(tmp_path.iterdir()))}.bin"
        code, output, wrong = run(tmp_path / log, *tokenizer, "--lookup-static", cache, "--json", *options)
        assert (code, wrong) == (0, ""), output
        return dict(records_of_table(read_lookup(cache)))

    asking = tmp_path / "in.jsonl"
    whole = counted("whole.jsonl")
    assert counted("out.jsonl", "--batch-input", asking) == whole != counted("out.jsonl")
    notes = [read_manifest(path) for path in sorted(tmp_path.glob("*.bin"))]
    (note,) = [note for note in notes if note and "batch_input" in note.options["reading"]]
    assert note.options["reading"]["batch_input"] == ["in.jsonl"]
    assert [source.file for source in note.sources] == ["out.jsonl", "in.jsonl"]
    code, _, wrong = run(tmp_path / "out.jsonl", *tokenizer, "--lookup-static", "x", "--batch-input", "no")
    assert code == 2
    assert "batch input no must be a file" in wrong


def test_read_options_take_effect(run: Run, texts: list[object], tmp_path: Path) -> None:
    def said(name: str, *options: object) -> dict[str, int]:
        output = run(*texts, "--lookup-static", tmp_path / name, "--json", *options)[1]
        return json.loads(output)["read"]["counts"]

    assert said("a.bin", "--min-length", 30)["filtered"] == 1
    assert said("b.bin", "--max-length", 30)["calls"] == 1
    assert said("c.bin", "--max-line-bytes", "90")["malformed"] > 1
    assert run(*texts, "--lookup-static", tmp_path / "d.bin", "--chat-template", "runes")[0] == 2

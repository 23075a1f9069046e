"""``suffixsvc compat``: the rules on real files, and a scan that no file can end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from suffixsvc_driver.models.finding import find_in_folders, find_in_ollama
from suffixsvc_driver.models.known_pairs import find_known, known_pairs
from suffixsvc_driver.targets.gguf_header import read_gguf_header
from support.tiny_gguf import SPECIAL, byte_texts, write_tiny_llama

from suffixsvc import cli
from suffixsvc.errors import InvalidConfigError, ModelCorruptError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*args: object) -> tuple[int, str, str]:
        code = cli.main(["compat", *map(str, args)])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "target.gguf", width=64, layers=4)


def write_other(path: Path) -> Path:
    texts = [*byte_texts(), *SPECIAL]
    texts[65], texts[66] = texts[66], texts[65]
    return write_tiny_llama(path, texts=texts)


def write_aborting(path: Path) -> Path:
    """Two tokens that are spelled alike: llama.cpp ends its process."""
    texts = [*byte_texts(), *SPECIAL]
    texts[66] = texts[65]
    return write_tiny_llama(path, texts=texts)


def test_a_pair_rule_by_rule(run: Run, target: Path, tmp_path: Path) -> None:
    draft = write_tiny_llama(tmp_path / "draft.gguf")
    code, told, wrong = run(target, draft)
    assert code == 0, wrong
    assert told.count("passes") == 5
    assert "They fit" in told
    code, told, _ = run(target, draft, "--json")
    plain = json.loads(told)
    assert plain["fits"] is True
    assert plain["draft"]["weights"] < plain["target"]["weights"]
    assert plain["cost_ratio"] == pytest.approx(draft.stat().st_size / target.stat().st_size)


def test_the_first_token_that_differs_is_named(run: Run, target: Path, tmp_path: Path) -> None:
    code, told, _ = run(target, write_other(tmp_path / "draft.gguf"))
    assert code == 1
    assert re.search(r"token-text +b'A' +b'B' +fails: token 65", told)
    assert told.count("passes") == 4
    assert "do not fit" in told


def test_a_scan_looks_at_everything_and_ends_with_nothing(run: Run, target: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    (folder / "below").mkdir(parents=True)
    write_tiny_llama(folder / "larger.gguf", width=64, layers=3)
    write_tiny_llama(folder / "below" / "small.gguf", layers=1)
    write_other(folder / "other.gguf")
    write_aborting(folder / "aborting.gguf")
    (folder / "torn.gguf").write_bytes(target.read_bytes()[:900])
    (folder / "same.gguf").symlink_to(target)
    (folder / "part-00002-of-00003.gguf").write_bytes(b"no model of its own")
    code, told, wrong = run(target, "--scan", folder, "--json")
    assert code == 0, wrong
    scanned = json.loads(told)
    assert [(each["name"], each["fits"], each["failed_rule"]) for each in scanned] == [
        ("below/small.gguf", True, ""),
        ("larger.gguf", True, ""),
        ("aborting.gguf", False, "unreadable"),
        ("torn.gguf", False, "unreadable"),
        ("other.gguf", False, "token-text"),
    ]
    assert "signal" in scanned[2]["reason"]
    assert "torn.gguf ends inside its header" in scanned[3]["reason"]
    code, told, _ = run(target, "--scan", folder)
    assert code == 0
    assert told.index("small.gguf") < told.index("larger.gguf") < told.index("does not fit")


def test_a_scan_of_ollamas_store(
    run: Run, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    (store / "blobs").mkdir(parents=True)
    write_tiny_llama(store / "blobs" / "sha256-aa")
    manifests = store / "manifests" / "registry" / "library"
    for name, layers in {
        "small/1b": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:aa"}],
        "gone/1b": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:bb"}],
        "text/1b": [{"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:aa"}],
        "odd/1b": ["?"],
    }.items():
        (manifests / name).parent.mkdir(parents=True)
        (manifests / name).write_text(json.dumps({"layers": layers}))
    (manifests / "torn").write_text("{")
    monkeypatch.setenv("OLLAMA_MODELS", str(store))
    code, told, wrong = run(target, "--ollama", "--json")
    assert code == 0, wrong
    assert [each["name"] for each in json.loads(told)] == ["small:1b"]
    with pytest.raises(InvalidConfigError, match="Ollama"):
        find_in_ollama(tmp_path)


def test_what_cannot_be_compared(run: Run, target: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for args, said in (
        ([target], "nothing to compare"),
        ([target, target, "--scan", tmp_path], "at the same time"),
        ([target, tmp_path / "none.gguf"], "none.gguf"),
        ([target, "--scan", tmp_path / "none"], "no such folder"),
    ):
        code, _, wrong = run(*args)
        assert code == 2
        assert said in wrong
    code, told, _ = run(target, "--scan", tmp_path / "empty")
    assert code == 1
    assert "Nothing here" in told
    assert find_in_folders([tmp_path / "empty"]) == []


@pytest.mark.parametrize("name", ["tokenizer.json", "./tokenizer.json"])
def test_a_tokenizer_json_does_not_do(
    name: str, run: Run, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked for in the registry, and "no such model" said nothing of what is needed."""
    monkeypatch.chdir(tmp_path)
    Path("tokenizer.json").write_text('{"version": "1.0"}')
    code, _, wrong = run(target, name)
    assert code == 2
    assert "tokenizer.json is not a GGUF file" in wrong
    assert "a tokenizer.json does not say which tokens begin and end a text" in wrong


def test_known_pairs() -> None:
    assert {pair.outcome for pair in known_pairs()} == {"works", "slower", "fails"}
    failed = find_known("DeepSeek-R1-Distill-Qwen-32B", "deepseek-r1-distill-qwen-1.5b-q8_0.gguf")
    assert failed is not None
    assert (failed.outcome, failed.rule) == ("fails", "token-text")
    assert find_known("Qwen2.5 Coder 1.5B", "qwen2.5-coder-0.5b.gguf").outcome == "slower"  # type: ignore[union-attr] # it is known
    assert find_known("gpt-oss", "smollm") is None


def test_a_header(target: Path, tmp_path: Path) -> None:
    header = read_gguf_header(target)
    assert (header.architecture, header.values["llama.block_count"]) == ("llama", 4)
    assert header.arrays["tokenizer.ggml.tokens"] == header.values["llama.vocab_size"]
    assert header.needed_bytes == target.stat().st_size
    for keep in (0, 4, 8, 20, 100, 2000):
        (tmp_path / "torn.gguf").write_bytes(target.read_bytes()[:keep])
        with pytest.raises(ModelCorruptError):
            read_gguf_header(tmp_path / "torn.gguf")

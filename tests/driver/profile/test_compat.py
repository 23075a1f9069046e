"""``suffixsvc compat``: the rules on real files, and a scan that no file can end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog

import suffixsvc_cli as cli
from suffixsvc.errors import InvalidConfigError, ModelCorruptError
from suffixsvc_cli.models.compat_show import print_scan
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.speedup_estimate import break_even_acceptance
from suffixsvc_models.finding import find_in_folders, find_in_ollama
from suffixsvc_models.gguf_header import read_gguf_header
from suffixsvc_models.known_pairs import find_known, known_pairs
from suffixsvc_models.scanning import ScannedDraft
from support.tiny_gguf import SPECIAL, byte_texts, write_tiny_llama
from support.word_vocabulary import write_word_vocabulary

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


def test_a_warning_does_not_break_json(
    run: Run, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine `compat --measure --json` printed the warning that the measurement was disturbed in
    front of its JSON, on stdout, so that no program could read it: structlog writes there unless it is
    configured, which only `serve` and `generate` did. Every verb logs to stderr."""
    monkeypatch.setenv("SUFFIXSVC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(
        "suffixsvc_driver.profile.target_cost._STEADY", -1.0
    )  # every measurement counts as disturbed
    structlog.reset_defaults()
    draft = write_tiny_llama(tmp_path / "draft.gguf")
    _, output, wrong = run(target, draft, "--measure", "--threads", 1, "--json")
    assert "busy machine" in wrong
    assert json.loads(output)["measured"]["threads"] == 1


def test_a_pair_rule_by_rule(run: Run, target: Path, tmp_path: Path) -> None:
    draft = write_tiny_llama(tmp_path / "draft.gguf")
    code, output, wrong = run(target, draft)
    assert code == 0, wrong
    assert output.count("passes") == 5
    assert "Compatible: " in output
    code, output, _ = run(target, draft, "--json")
    plain = json.loads(output)
    assert plain["fits"] is True
    assert plain["draft"]["weights"] < plain["target"]["weights"]
    assert plain["cost_ratio"] == pytest.approx(draft.stat().st_size / target.stat().st_size)


def test_the_first_token_that_differs_is_named(run: Run, target: Path, tmp_path: Path) -> None:
    code, output, _ = run(target, write_other(tmp_path / "draft.gguf"))
    assert code == 1
    assert re.search(r"token-text +b'A' +b'B' +fails: token 65", output)
    assert output.count("passes") == 4
    assert "Not compatible: " in output
    assert "It can draft through text: 86% of 7" in " ".join(output.split())
    code, output, _ = run(target, tmp_path / "draft.gguf", "--json")
    plain = json.loads(output)
    assert (code, plain["fits"]) == (1, False)
    text = plain["through_text"]
    assert (text["works"], text["whole"], text["token_ratio"]) == (True, 1.0, 1.0)
    assert text["kept_tokens"] > 0.99


def test_not_even_through_text(run: Run, target: Path, tmp_path: Path) -> None:
    """A vocabulary without digits."""
    texts = [*byte_texts(), *SPECIAL]
    for digit in range(48, 58):
        texts[digit] = f"number {digit}"
    code, output, _ = run(target, write_tiny_llama(tmp_path / "draft.gguf", texts=texts))
    assert code == 1
    assert "It cannot draft through text either" in " ".join(output.split())


def test_measured(run: Run, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's curve is kept, and compared with a few steps from then on; a draft's token is measured
    every time. What is measured is the machine's; what follows from it is not."""
    monkeypatch.setenv("SUFFIXSVC_HOME", str(tmp_path / "home"))
    draft = write_other(tmp_path / "draft.gguf")
    code, output, wrong = run(target, draft, "--measure", "--threads", 1, "--json")
    assert code == 1, wrong
    found = json.loads(output)["measured"]
    assert found["threads"] == 1
    assert found["cost_ratio"] == pytest.approx(found["draft_seconds"] / found["step_seconds"])
    kept = sorted((tmp_path / "home" / "cost").iterdir())
    assert [path.name.split("-t1-")[0] for path in kept] == ["target"]
    curve = CostCurve.from_seconds(json.loads(kept[0].read_text())["seconds"])
    # measured just now: nothing to correct
    assert found["pays_from"] == break_even_acceptance(curve, token_cost=found["cost_ratio"])
    code, output, _ = run(target, draft, "--measure", "--threads", 1)
    assert "Measured on 1 threads" in output
    assert sorted((tmp_path / "home" / "cost").iterdir()) == kept
    folder = tmp_path / "models"
    folder.mkdir()
    write_tiny_llama(folder / "fits.gguf")
    write_word_vocabulary(folder / "alone.gguf", "gpt-2")
    code, output, wrong = run(target, "--scan", folder, "--measure", "--threads", 1, "--json")
    assert code == 0, wrong
    fits, alone = json.loads(output)
    assert (fits["name"], alone["name"]) == ("fits.gguf", "alone.gguf")
    assert fits["measured_ratio"] > 0
    assert (alone["reason"], alone["measured_ratio"]) == ("a vocabulary without weights", None)
    assert sorted((tmp_path / "home" / "cost").iterdir()) == kept, "the target was not measured again"
    code, output, _ = run(target, folder / "alone.gguf", "--measure", "--json")
    assert json.loads(output)["measured"] is None


def test_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    """What fits, what can through text, what cannot; by what it is known for; by when it pays; by cost."""
    found = [
        ScannedDraft("never", "", True, cost_ratio=0.01, measured_ratio=0.9),
        ScannedDraft("early", "", True, cost_ratio=0.5, measured_ratio=0.3, pays_from=0.4),
        ScannedDraft("late", "", True, cost_ratio=0.1, measured_ratio=0.1, pays_from=0.6),
        ScannedDraft("slower", "", True, cost_ratio=0.1, measured_ratio=0.1, pays_from=0.1, known="slower"),
        ScannedDraft("text", "", False, "size", through_text=True, cost_ratio=0.1, token_ratio=3.0),
        ScannedDraft("shorter text", "", False, "size", through_text=True, cost_ratio=0.2),
        ScannedDraft("other", "", False, "size", cost_ratio=0.001),
    ]
    ranked = sorted(found, key=lambda each: each.rank)
    names = ["early", "late", "never", "slower", "shorter text", "text", "other"]
    assert [each.name for each in ranked] == names
    print_scan("the target", ranked)
    output = capsys.readouterr().out
    positions = [re.search(rf"^{name} ", output, re.MULTILINE).start() for name in names]  # type: ignore[union-attr] # it is there
    assert positions == sorted(positions)
    assert "40% accepted" in output
    assert "0.30 of a step" in output
    assert re.search(r"^never .* never", output, re.MULTILINE)


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
    code, output, wrong = run(target, "--scan", folder, "--json")
    assert code == 0, wrong
    scanned = json.loads(output)
    assert [(each["name"], each["fits"], each["failed_rule"]) for each in scanned] == [
        ("below/small.gguf", True, ""),
        ("larger.gguf", True, ""),
        ("other.gguf", False, "token-text"),
        ("aborting.gguf", False, "unreadable"),
        ("torn.gguf", False, "unreadable"),
    ]
    assert [each["through_text"] for each in scanned] == [False, False, True, False, False]
    assert "signal" in scanned[3]["reason"]
    assert "torn.gguf ends inside its header" in scanned[4]["reason"]


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
    code, output, wrong = run(target, "--ollama")
    assert code == 0, wrong
    assert re.search(r"^small:1b ", output, re.MULTILINE)
    with pytest.raises(InvalidConfigError, match="Ollama"):
        find_in_ollama(tmp_path)


def test_what_cannot_be_compared(run: Run, target: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for args, said in (
        ([target], "must be given; got neither"),
        ([target, target, "--scan", tmp_path], "must be given; got both"),
        ([target, target, "--threads", 1], "--threads must be given with --measure only"),
        ([target, tmp_path / "none.gguf"], "none.gguf"),
        ([target, "--scan", tmp_path / "none"], "no such folder"),
    ):
        code, _, wrong = run(*args)
        assert code == 2
        assert said in wrong
    code, output, _ = run(target, "--scan", tmp_path / "empty")
    assert code == 1
    assert "No model here" in output
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


PAIRS = [
    ("Qwen3-Coder-480B-A35B-Instruct", "Qwen3-Coder-Instruct-DRAFT-0.75B", "works", "74 to 82 %"),
    ("Qwen3-Coder-480B-A35B", "qwen2.5-coder-0.5b-transplant-q8_0.gguf", "works", "74 to 82 %"),
    ("Qwen3-Coder-480B-A35B", "qwen3-0.6b-vocab-swap.gguf", "works", "74 to 82 %"),
    ("Qwen3-Coder-480B-A35B", "Qwen3-0.6B-Q8_0.gguf", "fails", "id is 11"),
    ("Qwen3-Coder-480B-A35B", "Qwen2.5-Coder-0.5B", "fails", "id is 11"),
    ("Qwen3-Next-80B-A3B-Instruct", "Qwen3-0.6B", "not measured", "hybrid"),
    ("Qwen3-32B", "Qwen3-0.6B", "works", "55 %"),
    ("Qwen3-Coder-30B-A3B", "Qwen3-1.7B", "works", "21 %"),
    ("DeepSeek-R1-Distill-Qwen-32B", "DeepSeek-R1-Distill-Qwen-1.5B", "fails", "152,064"),
    ("DeepSeek-R1-Distill-Qwen-32B", "Qwen2.5-0.5B-Instruct", "not measured", "special tokens"),
    ("Qwen2.5-Coder-32B-Instruct", "Qwen2.5-Coder-0.5B-Instruct", "works", "11 times"),
    ("Qwen2.5-7B-Instruct", "Qwen2.5-0.5B-Instruct", "works", "3.0 to 7.3"),
    ("Qwen2.5 72B", "qwen2.5-0.5b-q8_0.gguf", "works", "3.0 to 7.3"),
    ("Qwen2.5-72B", "Qwen2.5-1.5B", "works", "half the cost"),
    ("Qwen2.5-Coder-1.5B", "Qwen2.5-Coder-0.5B", "slower", "23 ms"),
    ("Llama-3.1-8B-Instruct", "PARD-Llama-3.2-1B", "works", "79 %"),
    ("Qwen2.5-14B", "PARD-Qwen2.5-0.5B", "fails", "modified tokenizers"),
    ("Mistral-7B", "PARD-mistral", "fails", "modified tokenizers"),
    ("DeepSeek-V3", "DeepSeek-V3-DRAFT-0.6B-transplanted", "not measured", "this very target"),
    ("CodeLlama-34b-Instruct", "CodeLlama-7b-Instruct", "not measured", "32,016"),
    ("Code Llama 70B", "TinyLlama-1.1B", "not measured", "32,016"),
    ("Meta-Llama-3.1-70B-Instruct", "Llama-3.2-1B-Instruct", "not measured", "128,256"),
    ("Llama 3.3 70B", "llama-3.2-3b.gguf", "not measured", "128,256"),
]


@pytest.mark.parametrize(("target", "draft", "outcome", "figure"), PAIRS)
def test_the_particular_pair_is_found_before_the_general(
    target: str, draft: str, outcome: str, figure: str
) -> None:
    """A rule for drafts named "qwen" stood before the one for drafts with a transplanted vocabulary: of the
    pair of Qwen3-Coder-480B that works, `compat` said that it fails."""
    known = find_known(target, draft)
    assert known is not None
    assert (known.outcome, figure in known.figures) == (outcome, True), known


def test_no_pair_hides_another() -> None:
    """Every one is the first that fits some names; those that fail say by which rule."""
    assert {find_known(target, draft) for target, draft, _, _ in PAIRS} == set(known_pairs())
    for pair in known_pairs():
        assert bool(pair.rule) == (pair.outcome == "fails")


def test_known_pairs() -> None:
    assert {pair.outcome for pair in known_pairs()} == {"works", "slower", "fails", "not measured"}
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

"""``--draft`` with models that have the target's vocabulary, another one, or nothing in common with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.generating import Generating, generating
from support.other_vocabularies import CYCLE, PAIRS, write_cycle
from support.tiny_gguf import write_tiny_llama

RUN = ("abc", "--raw", "--max-tokens", 40, "--layers", "draft-model", "--json")


@pytest.fixture
def generate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Generating]:
    yield from generating(capsys, monkeypatch, tmp_path / "home")


@pytest.mark.parametrize("pairs", [(), PAIRS], ids=["its own vocabulary", "another vocabulary"])
def test_a_draft_model_drafts(generate: Generating, tmp_path: Path, pairs: tuple[str, ...]) -> None:
    """One that writes two letters at a time drafts through text, and the user is told."""
    target = write_cycle(tmp_path / "target.gguf")
    draft = write_cycle(tmp_path / "draft.gguf", pairs)
    ran = generate(target, *RUN, "--draft", draft)
    assert ran.code == 0, ran.err
    [turn] = ran.turns
    assert turn["text"] == (CYCLE * 3)[3:43]
    assert turn["sources"].count("draft_model") > 20
    said = " ".join(ran.err.split())
    assert ("draft.gguf drafts through text, which keeps 99.6% of its tokens" in said) == bool(pairs)


def test_a_draft_model_whose_text_cannot_be_retokenized(generate: Generating, tmp_path: Path) -> None:
    """It knows no letters: nothing that it could be asked about survives."""
    texts = [chr(0x2500 + i) for i in range(256)]
    target = write_cycle(tmp_path / "target.gguf")
    draft = write_tiny_llama(tmp_path / "draft.gguf", texts=[*texts, "<|endoftext|>"], width=16, layers=1)
    ran = generate(target, *RUN, "--draft", draft)
    assert ran.code == 2
    assert "round-trip" in ran.err
    assert "suffixsvc compat" in " ".join(ran.err.split())

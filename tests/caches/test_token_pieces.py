"""Encoding in pieces gives the tokens of the whole text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from suffixsvc.types import TokenArray
from suffixsvc_caches.tokenizers import pieces as module
from suffixsvc_caches.tokenizers.base import Tokenizer
from suffixsvc_caches.tokenizers.load import load_tokenizer
from suffixsvc_caches.tokenizers.pieces import encode_texts

tokenizers = pytest.importorskip("tokenizers")

SOURCE = Path(module.__file__).read_text(encoding="utf-8")


def text_of(seed: int, lines: int) -> str:
    """Lines of code and prose, blank ones and runs of spaces among them."""
    chance = random.Random(seed)
    words = [
        "return",
        "x1",
        "  ",
        "\t",
        "größe",
        "=",
        "'s",
        "12345",
        "\n",
        "\n\n",
        "(",
        "},",
        "你好",
        ". ",
        " ",
    ]
    odd = ["".join(chance.choices(words, k=chance.randrange(1, 12))) for _ in range(lines // 2)]
    return "\n".join(chance.sample(odd + chance.choices(SOURCE.splitlines(), k=lines), lines))


class Counting:
    """Records the texts passed to a tokenizer."""

    def __init__(self, inner: Tokenizer) -> None:
        self._inner = inner
        self.given: list[str] = []

    fingerprint = ""
    vocab_size = 0

    def encode_batch(self, texts: Sequence[str]) -> list[TokenArray]:
        self.given += texts
        return self._inner.encode_batch(texts)

    def decode(self, token_ids: object) -> str:
        raise NotImplementedError


def trained(folder: Path, *, words_know_their_space: bool) -> Path:
    """A small BPE tokenizer: byte-level, or one that prepends a space to every text."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="?"))
    if words_know_their_space:
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
        tokenizer.decoder = tokenizers.decoders.Metaspace()
    else:
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=700, special_tokens=["?"], show_progress=False)
    tokenizer.train_from_iterator([SOURCE, text_of(0, 300)], trainer)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.mark.parametrize("size", [300, 1000])
def test_pieces_have_the_tokens_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(module, "PIECE_CHARS", size)
    tokenizer = load_tokenizer(trained(tmp_path, words_know_their_space=False))
    for seed in range(20):
        texts = [text_of(seed, 200), "short", text_of(seed + 100, 90), ""]
        noted = Counting(tokenizer)
        found = encode_texts(noted, texts)
        for text, tokens in zip(texts, found, strict=True):
            assert tokens.dtype == np.int32
            assert np.array_equal(tokens, tokenizer.encode_batch([text])[0]), f"seed {seed}"
        assert max(map(len, noted.given)) < max(map(len, texts)) / 2, "nothing was cut"


def test_texts_are_not_divided_for_a_tokenizer_that_prepends_a_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would prepend a space to every piece."""
    monkeypatch.setattr(module, "PIECE_CHARS", 300)
    tokenizer = load_tokenizer(trained(tmp_path, words_know_their_space=True))
    text = text_of(1, 200)
    pieces = ["first line\n", "second line"]
    apart = np.concatenate(tokenizer.encode_batch(pieces))
    assert not np.array_equal(apart, tokenizer.encode_batch(["".join(pieces)])[0])  # it is such a tokenizer
    noted = Counting(tokenizer)
    assert np.array_equal(encode_texts(noted, [text])[0], tokenizer.encode_batch([text])[0])
    assert text in noted.given


@pytest.mark.model
@pytest.mark.parametrize("threads", [1, 3])
def test_a_gguf_encodes_pieces_on_any_number_of_threads(
    real_model: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    monkeypatch.setattr(module, "PIECE_CHARS", 4000)
    tokenizer = load_tokenizer(real_model, threads=threads)
    texts = [text_of(seed, 600) for seed in range(3)] + ["one", ""]
    whole = [tokenizer.encode_batch([text])[0] for text in texts]
    for found, expected in zip(encode_texts(tokenizer, texts), whole, strict=True):
        assert np.array_equal(found, expected)

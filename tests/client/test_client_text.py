"""The text codec: ids, text, and the bytes of a fingerprint."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from suffixsvc import SuffixCache
from suffixsvc.errors import InvalidConfigError, InvalidInputError, MissingExtraError, TokenizerMismatchError
from suffixsvc.fingerprint import tokenizer_fingerprint
from suffixsvc_client import SuffixClient
from suffixsvc_client.testing import FakeTransport
from suffixsvc_client.text import TextCodec


@pytest.fixture
def byte_level() -> Tokenizer:
    """A byte-level BPE as GPT-2's: all bytes, one merge, a special token, a padding entry."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: i for i, character in enumerate(alphabet)} | {"ab": 256, "[PAD257]": 257}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.add_tokens([AddedToken("<tool é>", special=False)])
    return tokenizer


@pytest.fixture
def spm() -> Tokenizer:
    """A SentencePiece-like BPE with byte fallback."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, "<0x0A>": 3, "<0xFF>": 4, "▁": 5, "▁a": 6, "é": 7}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


@pytest.mark.parametrize("text", ["abc", "SELECT *\n\tFROM t", "naïve café 日本 🎉", "", "<|end|>ab"])
def test_round_trip(byte_level: Tokenizer, text: str) -> None:
    codec = TextCodec(byte_level, eos="<|end|>")
    ids = codec.encode(text)
    assert str(ids.dtype) == "int32"
    assert codec.decode(ids) == text
    assert b"".join(codec.token_bytes(int(i)) for i in ids) == text.encode()


def test_every_byte_has_its_token(byte_level: Tokenizer) -> None:
    codec = TextCodec(byte_level)
    assert sorted(codec.token_bytes(i) for i in range(256)) == [bytes([b]) for b in range(256)]


def test_sentencepiece_bytes(spm: Tokenizer) -> None:
    codec = TextCodec(spm, bos="<s>", eos=2)
    assert (codec.bos_id, codec.eos_id) == (1, 2)
    assert [codec.token_bytes(i) for i in range(9)] == [
        *(b"<unk>", b"<s>", b"</s>", b"\n", b"\xff", b" ", b" a", "é".encode(), b""),
    ]


def test_the_fingerprint_is_over_bytes_in_use_and_special_ids(byte_level: Tokenizer) -> None:
    codec = TextCodec(byte_level, eos="<|end|>")
    end, tool = byte_level.token_to_id("<|end|>"), byte_level.token_to_id("<tool é>")
    tokens = [(i, codec.token_bytes(i)) for i in range(256)]
    tokens += [(256, b"ab"), (end, b"<|end|>"), (tool, "<tool é>".encode())]
    assert codec.fingerprint == tokenizer_fingerprint(tokens, {"bos": None, "eos": end})
    assert codec.fingerprint != TextCodec(byte_level).fingerprint
    assert codec.fingerprint == "xxh3:40f2510838e12c2b"


def test_from_a_file(byte_level: Tokenizer, tmp_path: Path) -> None:
    byte_level.save(str(tmp_path / "tokenizer.json"))
    loaded = TextCodec.load(tmp_path / "tokenizer.json", eos="<|end|>")
    assert loaded.fingerprint == TextCodec(byte_level, eos="<|end|>").fingerprint


def test_files_that_are_not_tokenizers(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"model": ')
    for name in ("broken.json", "missing.json"):
        with pytest.raises(InvalidConfigError, match=name):
            TextCodec.load(tmp_path / name)


@pytest.mark.parametrize("token", ["<|nothing|>", 99_999])
def test_special_tokens_have_to_exist(byte_level: Tokenizer, token: str | int) -> None:
    with pytest.raises(InvalidInputError, match="eos"):
        TextCodec(byte_level, eos=token)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "tokenizers":
            raise ModuleNotFoundError(name="tokenizers")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingExtraError, match=r"suffixsvc\[text\]"):
        TextCodec.load(tmp_path / "tokenizer.json")


def test_text_in_text_out(byte_level: Tokenizer) -> None:
    codec = TextCodec(byte_level, eos="<|end|>")
    with SuffixCache() as cache, SuffixClient(transport=FakeTransport(cache)) as client:
        namespace = client.namespace("a", tokenizer=codec.fingerprint)
        namespace.add_output(codec.encode("SELECT name FROM singer ORDER BY name"))
        draft = namespace.open_session(codec.encode("Q: ")).step(codec.encode("SELECT name "))
        assert len(draft) > 0
        assert "FROM singer ORDER BY name".startswith(codec.decode(draft.token_ids))
        with pytest.raises(TokenizerMismatchError):
            client.namespace("a", tokenizer=TextCodec(byte_level).fingerprint).open_session([1])

"""Encoding with the word cache gives the tokens of llama.cpp and of the tokenizers library."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers

from suffixsvc.core import _ext
from suffixsvc.types import TokenArray
from suffixsvc_caches.tokenizers.caching_encoder import CachingEncoder
from suffixsvc_caches.tokenizers.gguf import GgufTokenizer
from suffixsvc_caches.tokenizers.json_file import JsonTokenizer
from suffixsvc_caches.tokenizers.load import load_tokenizer
from suffixsvc_caches.tokenizers.words import SPLIT_EXPRESSIONS, WORD_RULES, WordCut, cut_table
from suffixsvc_client.text import TextCodec
from suffixsvc_driver.targets.llama.model import LlamaModel
from support.word_vocabulary import SPELLED, texts_of_words, write_word_tokenizer, write_word_vocabulary

pytest.importorskip("llama_cpp")

#: llama.cpp uses std::regex for their expressions, which takes ten times as long
SLOW = {"deepseek-v3", "gpt-4o", "hunyuan-dense", "kanana2", "llama4", "minimax-m2", "seed-coder", "tekken"}

#: longer words are not cached
MAX_WORD_BYTES = 256

Cuts = npt.NDArray[np.uint8]


def encoder_of(model: LlamaModel, cuts: Cuts | None = None, memory_bytes: int = 1 << 20) -> CachingEncoder:
    lengths = np.array([len(text) for text in model.vocabulary.texts], np.int64)
    table = cut_table(token.text for token in model.special_tokens) if cuts is None else cuts
    return CachingEncoder(model.token_array, table, lengths, memory_bytes)


def different(model: LlamaModel, encode: Callable[[str], TokenArray], texts: list[str]) -> list[str]:
    return [text for text in texts if not np.array_equal(encode(text), model.token_array(text))]


def new_seed() -> int:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    return seed


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> LlamaModel:
    path = write_word_vocabulary(tmp_path_factory.mktemp("words") / "m.gguf", "qwen2")
    return LlamaModel(path, vocab_only=True)


@pytest.mark.parametrize("rule", sorted(WORD_RULES))
def test_every_rule_against_llama_cpp(rule: str, tmp_path: Path) -> None:
    path = write_word_vocabulary(tmp_path / "m.gguf", rule)
    texts = texts_of_words(new_seed(), 15 if rule in SLOW else 150)
    with LlamaModel(path, vocab_only=True) as model:
        assert {token.text.decode() for token in model.special_tokens} >= set(SPELLED)
        tokenizer = load_tokenizer(path)
        assert isinstance(tokenizer, GgufTokenizer)
        assert tokenizer.encoder is not None
        assert different(model, lambda text: tokenizer.encode_batch([text])[0], texts) == []


@pytest.mark.parametrize("rule", ["gpt-2", "qwen2", "deepseek-llm"])
@pytest.mark.parametrize("spelled", ["café<", " x", "12", "\n\n", "a b", "((", "'s"])
def test_a_special_token_of_any_kind(rule: str, spelled: str, tmp_path: Path) -> None:
    path = write_word_vocabulary(tmp_path / "m.gguf", rule, special=[*SPELLED, spelled])
    texts = texts_of_words(new_seed(), 120, [*SPELLED, *[spelled] * 4])
    with LlamaModel(path, vocab_only=True) as model:
        assert different(model, encoder_of(model).encode, texts) == []


@pytest.mark.parametrize("rule", ["superbpe", "gemma4", "poro-chat", ""])
def test_other_rules_have_no_words(rule: str, tmp_path: Path) -> None:
    """Tokenizers with unknown word rules encode whole texts."""
    path = write_word_vocabulary(tmp_path / "m.gguf", rule)
    tokenizer = load_tokenizer(path)
    assert isinstance(tokenizer, GgufTokenizer)
    assert tokenizer.encoder is None
    with LlamaModel(path, vocab_only=True) as model:
        texts = texts_of_words(1, 20)
        assert different(model, lambda text: tokenizer.encode_batch([text])[0], texts) == []


SPLITTERS = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "digits": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
} | {
    f"split {i}": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(expression), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    for i, expression in enumerate(sorted(SPLIT_EXPRESSIONS))
}


@pytest.mark.parametrize("normalizer", [None, normalizers.NFC()], ids=["as it is", "nfc"])
@pytest.mark.parametrize("splitter", SPLITTERS.values(), ids=SPLITTERS)
def test_every_expression_against_the_tokenizers_library(
    splitter: pre_tokenizers.PreTokenizer, normalizer: normalizers.Normalizer | None, tmp_path: Path
) -> None:
    path = write_word_tokenizer(tmp_path / "tokenizer.json", splitter, normalizer=normalizer)
    tokenizer, plain = JsonTokenizer(path), TextCodec.load(path)
    assert tokenizer.encoder is not None
    texts = texts_of_words(new_seed(), 300)
    found = [ids.tolist() for ids in tokenizer.encode_batch(texts)]
    assert found == [plain.encode(text).tolist() for text in texts]


def test_words_that_a_normalizer_makes_longer_and_shorter(tmp_path: Path) -> None:
    """The changes of length cancel out: tokens and text have the same number of bytes."""
    path = tmp_path / "tokenizer.json"
    write_word_tokenizer(path, SPLITTERS["split 0"], normalizer=normalizers.NFC(), merging=False)
    plain = TextCodec.load(path)
    for text in (
        "1\u0344ab 2\u212b\u212bcd",
        "x1\u0344ab,2\u212b\u212bcd y",
        "e\u0301\u0344a 1\u2126\u212b b",
    ):
        tokenizer = JsonTokenizer(path)
        for part in (text, text[:4], text[-4:]):
            assert tokenizer.encode_batch([part])[0].tolist() == plain.encode(part).tolist()


@pytest.mark.parametrize(
    ("splitter", "special", "normalizer"),
    [
        (SPLITTERS["gpt-2"], [AddedToken("<x>", rstrip=True)], None),
        (SPLITTERS["gpt-2"], [AddedToken("xyz", single_word=True)], None),
        (SPLITTERS["gpt-2"], [], normalizers.Lowercase()),
        (pre_tokenizers.ByteLevel(add_prefix_space=True), [], None),
        (pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), [], None),
        (pre_tokenizers.Split(Regex("[a-z]"), "isolated"), [], None),
        (pre_tokenizers.Split("x", "isolated"), [], None),
        (pre_tokenizers.Whitespace(), [], None),
    ],
)  # fmt: skip
def test_other_tokenizers_have_no_words(
    splitter: pre_tokenizers.PreTokenizer,
    special: list[AddedToken],
    normalizer: normalizers.Normalizer | None,
    tmp_path: Path,
) -> None:
    path = tmp_path / "tokenizer.json"
    write_word_tokenizer(path, splitter, special=special, normalizer=normalizer)
    tokenizer, plain = JsonTokenizer(path), TextCodec.load(path)
    assert tokenizer.encoder is None
    texts = texts_of_words(1, 20)
    assert [ids.tolist() for ids in tokenizer.encode_batch(texts)] == [
        plain.encode(text).tolist() for text in texts
    ]


@pytest.mark.parametrize(
    "pair", ["(a", "a_", " 1", "  ", "ab"], ids=["sign", "special", "digit", "blank", "letters"]
)
def test_a_wrong_cut_is_detected(pair: str, qwen: LlamaModel) -> None:
    """The vocabularies of these tests detect a cut inside a word."""
    kinds: dict[str, npt.NDArray[np.uint8]] = {
        kind: np.array([i for i in range(128) if test(chr(i))], np.uint8)
        for kind, test in [("(", _is_sign), ("a", str.isalpha), ("1", str.isdigit)]
    }
    rows, columns = (kinds.get(c, np.array([ord(c)], np.uint8)) for c in pair)
    table = cut_table(token.text for token in qwen.special_tokens)
    table[np.ix_(rows, columns)] = WordCut.HERE
    assert different(qwen, encoder_of(qwen, table).encode, texts_of_words(1, 300)) != []


def _is_sign(c: str) -> bool:
    return c.isprintable() and not c.isalnum() and c != " "


def test_words_too_long_to_cache(qwen: LlamaModel) -> None:
    long = "é" * MAX_WORD_BYTES
    texts = [
        long,
        f"a {long}",
        f"{long} b",
        f"{long} c {long}",
        f"x = {long}y + {'日本' * 200}; z",
        "a" * 5000,
    ]
    encoder = encoder_of(qwen)
    assert different(qwen, encoder.encode, texts * 2) == []


def test_the_cache_is_cleared_at_its_memory_limit(qwen: LlamaModel) -> None:
    encoder = encoder_of(qwen, memory_bytes=1 << 16)
    most = 0
    for i in range(40):
        assert different(qwen, encoder.encode, texts_of_words(i, 30)) == []
        most = max(most, encoder.memo.words)
    assert 400 < most < 3000
    assert encoder.memo.words != most


def test_threads_share_the_words(qwen: LlamaModel) -> None:
    """With so little memory that threads clear each other's words."""
    encoder = encoder_of(qwen, memory_bytes=1 << 15)
    texts = [texts_of_words(seed, 60) for seed in range(4)]
    wrong: list[str] = []

    def work(mine: list[str]) -> None:
        wrong.extend(different(qwen, encoder.encode, mine * 5))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_cache_reports_holes_and_missing_words() -> None:
    cuts = np.zeros((128, 128), np.uint8)
    cuts[ord("b"), ord("a")] = WordCut.HERE
    cuts[ord("b"), ord(" ")] = WordCut.BEFORE_LETTER
    memo = _ext.WordMemo(cuts.tobytes(), 1 << 20)

    def learn(words: list[bytes], *tokens: list[int]) -> None:
        ends = np.cumsum([len(each) for each in tokens], dtype=np.int64)
        memo.learn(words, np.array([i for each in tokens for i in each], np.int32), ends)

    text = b"ab" * 3 + b" a" + b" 1" + b"b" * 300 + b"ab"
    assert memo.encode(text)[2] == [b"ab"]
    learn([b"ab", b"x" * 300], [7, 8], [9])
    assert memo.words == 1
    ids, holes, missing = memo.encode(text)
    assert (ids.tolist(), missing) == ([7, 8] * 4, [])
    assert holes == [(6, 6, 6 + 2 + 2 + 300)]
    learn([b"ab"], [1])
    assert memo.encode(b"ab")[0].tolist() == [7, 8], "cached words are not replaced"
    assert memo.encode(b"")[0].tolist() == []
    learn([])
    with pytest.raises(ValueError, match="cuts"):
        _ext.WordMemo(bytes(4), 1)
    with pytest.raises(ValueError, match="ends"):
        learn([b"ab"])

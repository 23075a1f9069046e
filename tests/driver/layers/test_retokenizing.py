"""Text between two vocabularies: followed token by token, and drafts brought back."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest

from suffixsvc.errors import VocabularyMismatchError
from suffixsvc_driver.retokenizing import Retokenizer, TextTokenizer, compare_texts
from suffixsvc_driver.retokenizing.following import TextFollower
from suffixsvc_driver.retokenizing.tokenizer import Cutter
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.llama.tokenizer import LlamaTokenizer
from support.long_form import rounds
from support.other_vocabularies import PAIRS, write_cycle, write_spm_vocabulary
from support.tiny_gguf import EOS_ID, SPECIAL, write_tiny_llama
from support.word_vocabulary import texts_of_words, write_word_vocabulary

RULES = ["gpt-2", "gpt-4o", "deepseek-llm"]
START, END = SPECIAL[1].encode(), SPECIAL[2].encode()


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LlamaTokenizer]]:
    """Bytes; words cut by three rules, of one vocabulary; Llama 2's kind; bytes and pairs of letters."""
    folder = tmp_path_factory.mktemp("vocabularies")
    files = {rule: write_word_vocabulary(folder / f"{rule}.gguf", rule) for rule in RULES}
    files["bytes"] = write_tiny_llama(folder / "bytes.gguf")
    files["spm"] = write_spm_vocabulary(folder / "spm.gguf")
    files["pairs"] = write_cycle(folder / "pairs.gguf", PAIRS)
    models = {name: LlamaModel(path, vocab_only=True) for name, path in files.items()}
    yield {name: LlamaTokenizer(model) for name, model in models.items()}
    for model in models.values():
        model.close()


class Renamed:
    """A tokenizer with other markers, in place of its own."""

    def __init__(self, inner: LlamaTokenizer, markers: Mapping[int, bytes]) -> None:
        texts = list(inner.vocabulary.texts)
        for token, text in markers.items():
            texts[token] = text
        self.vocabulary = replace(inner.vocabulary, texts=tuple(texts), fingerprint="")
        self.markers = markers
        self.ends: Sequence[int] = [EOS_ID]
        self._inner = inner

    def encode(self, text: str, begins: bool) -> list[int]:
        return self._inner.encode(text, begins)


def written(tokenizer: TextTokenizer, ids: Sequence[int]) -> bytes:
    return b"".join(tokenizer.vocabulary.texts[token] for token in ids)


def a_text(chance: random.Random, seed: int, tokenizers: Sequence[LlamaTokenizer]) -> str:
    markers = [text.decode() for each in tokenizers for text in each.markers.values()]
    return "".join(texts_of_words(seed, chance.choice([1, 3, 6]), markers))


@pytest.mark.parametrize("seed", range(rounds(6, full=20)))
def test_followed_step_by_step_as_in_one_go(tokenizers: dict[str, LlamaTokenizer], seed: int) -> None:
    """Whatever is appended and taken back again, the ids are those of the whole text. The tokens are what a
    tokenizer makes of a text, with others in between: markers, parts of characters, bytes that are none."""
    chance = random.Random(seed)
    source, dest = tokenizers[chance.choice(list(tokenizers))], tokenizers[chance.choice(list(tokenizers))]
    print("seed", seed, source.vocabulary.fingerprint, "->", dest.vocabulary.fingerprint)
    tokens = source.encode(a_text(chance, seed, [source, dest]), True)
    for _ in range(len(tokens) // 20 if seed % 2 else 0):
        kind = chance.choice([list(source.markers), range(len(source.vocabulary.texts))])
        tokens.insert(chance.randrange(len(tokens) + 1), chance.choice(kind))

    def follower() -> TextFollower:
        foreign = set(dest.markers.values()) - set(source.markers.values())
        return TextFollower(source, dest, Cutter(dest, foreign, leaves_out=True))

    followed, at = follower(), 0
    while at < len(tokens):
        at = min(len(tokens), at + chance.choice([1, 1, 2, 3, 8, 40]))
        if chance.random() < 0.2:
            at = max(0, at - chance.randrange(12))
        drafted = [chance.randrange(256) for _ in range(chance.choice([0, 0, 0, 3]))]
        whole = follower()
        whole.follow([*tokens[:at], *drafted])
        followed.follow([*tokens[:at], *drafted])
        assert followed.ids == whole.ids, at
        assert followed.pending == whole.pending, at
        assert followed.last(word=True) == whole.last(word=True), at


@pytest.mark.parametrize("names", [("gpt-2", "gpt-2"), ("gpt-2", "spm"), ("spm", "gpt-4o")])
def test_the_ids_stand_for_the_text(tokenizers: dict[str, LlamaTokenizer], names: tuple[str, str]) -> None:
    source, dest = (tokenizers[name] for name in names)
    text = "def f(x):\n    return {'naïve': x + 1}  # 漢字 🙂\n"
    retokenizer = Retokenizer(source, dest)
    blank = b" " if names[1] == "spm" else b""
    bos = b"<s>" if names[1] == "spm" else b""
    assert written(dest, retokenizer.follow(source.encode(text, True))) == bos + blank + text.encode()


@pytest.mark.parametrize("seed", range(rounds(4, full=8)))
def test_drafts_come_back_as_the_target_would_have_written_them(
    tokenizers: dict[str, LlamaTokenizer], seed: int
) -> None:
    """Of a draft of all that follows, in whatever tokens: the very tokens that follow, where these are what
    the tokenizer makes of the whole text. Its probability is kept, and each part of it is charged where it
    begins."""
    chance = random.Random(seed)
    target, draft = tokenizers[chance.choice(list(tokenizers))], tokenizers[chance.choice(list(tokenizers))]
    text = "".join(texts_of_words(seed, 3, ["x"]))[:150].replace("<|", "|") + "."
    tokens = target.encode(text, True)
    retokenizer = Retokenizer(target, draft)
    tried = came_back = 0
    for at in range(1, len(tokens)):
        rest = written(target, tokens[at:])
        retokenizer.follow(tokens[:at])
        if rest[0] & 0xC0 == 0x80:
            continue  # inside a character
        tried += 1
        drafted = draft.encode(rest.decode(), False)
        probs = [chance.uniform(0.2, 1.0) for _ in drafted]
        ids, charged = retokenizer.translate(drafted, probs)
        if not ids:
            continue
        assert written(target, ids) == rest
        assert math.prod(charged) == pytest.approx(math.prod(probs))
        assert charged == pytest.approx(charge_by_hand(target, ids, draft, drafted, probs))
        came_back += ids == tokens[at:]
    print("seed", seed, came_back, "of", tried)
    assert came_back == tried


def charge_by_hand(
    target: TextTokenizer,
    ids: Sequence[int],
    draft: TextTokenizer,
    drafted: Sequence[int],
    probs: Sequence[float],
) -> list[float]:
    """Byte by byte."""
    owner = [i for i, token in enumerate(ids) for _ in target.vocabulary.texts[token]]
    charged = [1.0] * len(ids)
    at = 0
    for token, prob in zip(drafted, probs, strict=True):
        charged[owner[at]] *= prob
        at += len(draft.vocabulary.texts[token])
    return charged


def test_what_would_merge_with_the_last_token_is_not_drafted(tokenizers: dict[str, LlamaTokenizer]) -> None:
    """ "cd" is one token of the target, which wrote "c" and cannot go on with "d" as its tokenizer would."""
    retokenizer = Retokenizer(tokenizers["pairs"], tokenizers["bytes"])
    retokenizer.follow([ord("x"), ord("c")])
    assert retokenizer.translate(list(b"def"), [0.9] * 3) == ([], [])
    assert retokenizer.merged == 1
    retokenizer.follow([ord("x"), ord("c"), ord("d")])  # as it wrote "cd" in two, "ef" is no matter of these
    pair = tokenizers["pairs"].encode("ef", False)
    assert retokenizer.translate(list(b"ef"), [0.9, 0.5]) == (pair, [pytest.approx(0.45)])
    assert retokenizer.merged == 1


def test_a_character_that_is_not_whole(tokenizers: dict[str, LlamaTokenizer]) -> None:
    """The draft model gets whole characters only, and its draft counts where it begins as the target did."""
    retokenizer = Retokenizer(tokenizers["bytes"], tokenizers["spm"])
    character = "漢".encode()
    drafted = tokenizers["spm"].encode("漢!", False)
    probs = [0.5 + 0.1 * i for i in range(len(drafted))]
    for known in (1, 2):
        ids = retokenizer.follow([*b"a ", *character[:known]])
        assert written(tokenizers["spm"], ids) == b"<s> a "
        rest = [*character[known:], ord("!")]
        came, charged = retokenizer.translate(drafted, probs)
        assert came == rest
        assert math.prod(charged) == pytest.approx(math.prod(probs))
        assert charged[0] == pytest.approx(math.prod(probs[: known + 1])), "what was written is charged, too"
    assert retokenizer.translate(tokenizers["spm"].encode("字!", False), [0.9] * 4) == ([], [])
    assert retokenizer.translate(tokenizers["spm"].encode("!", False), [0.9]) == ([], [])
    retokenizer.follow([*b"a", 0x80, 0xFF, *b"b"])  # never a character: the draft model sees stand-ins
    assert written(tokenizers["spm"], retokenizer.follow([*b"a", 0x80, *b"b"])) == "<s> a\ufffdb".encode()
    assert retokenizer.translate([ord("c") + 3], [0.9]) == ([ord("c")], [0.9]), (
        "bytes of it are ids from 3 on"
    )


def test_drafts_end_before_invalid_tokens(tokenizers: dict[str, LlamaTokenizer]) -> None:
    retokenizer = Retokenizer(tokenizers["bytes"], tokenizers["bytes"])
    retokenizer.follow(list(b"ab"))
    size = tokenizers["bytes"].vocabulary.size
    padding = size - 1
    for nonsense in (-1, size, 10**9, padding + 1, 0x80):
        assert retokenizer.translate([*b"cd", nonsense, *b"e"], [0.5] * 4) == ([*b"cd"], [0.5, 0.5])
    assert retokenizer.translate([*b"c", 0xE6, 0xBC], [0.5] * 3) == ([*b"c"], [0.5]), "half a character"
    assert retokenizer.translate([], []) == ([], [])
    assert math.isnan(retokenizer.translate([*b"c"], [math.nan])[1][0]), "the driver cuts there"
    with pytest.raises(IndexError):
        retokenizer.follow([10**6])
    assert retokenizer.follow(list(b"xy")) == list(b"xy"), "and continues"


def test_markers_of_both(tokenizers: dict[str, LlamaTokenizer]) -> None:
    plain = tokenizers["bytes"]
    [start, end] = [token for token, text in plain.markers.items() if text in (START, END)]
    retokenizer = Retokenizer(plain, plain)
    text = [start, *b"user\nhi", end, *b"\n", start]
    assert retokenizer.follow(text) == text
    came = retokenizer.translate(
        [*b"yes", start, *b"no", end, *b"x"], [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2]
    )
    assert came == ([*b"yes", start, *b"no", end], [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]), (
        "nothing after the end"
    )
    assert written(plain, retokenizer.follow([*b"<|im_start|>"])) == START, "spelled out is no marker"
    assert start not in retokenizer.follow([*b"<|im_start|>"])


def test_markers_of_one_side(tokenizers: dict[str, LlamaTokenizer]) -> None:
    """One id on one side is several on the other."""
    plain = tokenizers["bytes"]
    start, end = 257, 258
    other = Renamed(plain, {EOS_ID: b"<end>", start: b"[INST]"})
    to_other = Retokenizer(plain, other)
    assert to_other.follow([start, *b"hi"]) == [*START, *b"hi"]
    assert to_other.follow([*b"a[INST]b[INS"]) == [*b"a", start, *b"b[INS"], "it can be said in no other way"
    came = to_other.translate([*b"c", *START, *b"d"], [0.9] * (2 + len(START)))
    assert came[0] == [*b"c", start, *b"d"]
    assert came[1][1] == pytest.approx(0.9 ** len(START))
    back = Retokenizer(other, plain)
    came = back.translate([*b"ab"], [0.9, 0.9])
    back.follow([*b"a"])
    assert back.translate([*b"b", start, *b"c"], [0.9, 0.8, 0.7]) == (
        [*b"b", *START, *b"c"],
        [0.9, 0.8, *[1.0] * (len(START) - 1), 0.7],
    )
    assert back.translate([*b"b", end, *b"c"], [0.9, 0.8, 0.7]) == ([*b"b", EOS_ID], [0.9, 0.8]), "both end"


def test_what_begins_a_text(tokenizers: dict[str, LlamaTokenizer]) -> None:
    """Each side's own, where the text has the target's; not spelled out."""
    spm, plain = tokenizers["spm"], tokenizers["bytes"]
    [bos] = [token for token, text in spm.markers.items() if text == b"<s>"]
    hi = spm.encode("hi", True)
    assert Retokenizer(spm, spm).follow([bos, *hi]) == [bos, *hi]
    assert Retokenizer(spm, spm).follow(hi) == hi, "the target's prompt goes without"
    assert Retokenizer(spm, plain).follow([bos, *hi]) == [*b"hi"]
    assert Retokenizer(plain, spm).follow([*b"hi"]) == [bos, *hi], "the target knows of none"
    assert Retokenizer(plain, plain).follow([EOS_ID, *b"hi"]) == [EOS_ID, *b"hi"], "not added by itself"
    retokenizer = Retokenizer(spm, spm)
    for text in ([bos, *hi], [bos], hi, [bos, bos], []):
        assert retokenizer.follow(text) == text


def test_blanks_in_front(tokenizers: dict[str, LlamaTokenizer]) -> None:
    """One of the two writes a blank where a text begins: it is no part of the text."""
    spm, plain = tokenizers["spm"], tokenizers["bytes"]
    retokenizer = Retokenizer(spm, plain)
    [bos] = [token for token, text in spm.markers.items() if text == b"<s>"]
    assert retokenizer.follow([bos, *spm.encode("hi  x", True)]) == [*b"hi  x"]
    assert retokenizer.follow([bos]) == []
    assert retokenizer.translate([*b"hi"], [0.9] * 2)[0] == spm.encode("hi", True)
    assert retokenizer.follow([bos, *spm.encode(" hi", True)]) == [*b" hi"]
    for said in (" you", "you", "\nyou"):
        drafted, [*_] = retokenizer.translate([*said.encode()], [0.9] * len(said))
        assert written(spm, drafted) == said.encode()
    back = Retokenizer(plain, spm)
    assert back.follow([*b"hi"]) == [bos, *spm.encode("hi", True)]
    back.follow([])
    assert back.translate(spm.encode("def", True), [0.9] * 9)[0] == [*b"def"]
    back.follow([257])
    assert back.translate(spm.encode("def", True), [0.9] * 9)[0] == [*b"def"]
    back.follow([257, *b"x"])
    assert back.translate(spm.encode("def", True), [0.9] * 9)[0] == [*b" def"]


def test_blanks_at_the_end_are_cut_as_the_draft_model_did(tokenizers: dict[str, LlamaTokenizer]) -> None:
    """Whether the last of them belongs to the next word only the draft model knew."""
    same = tokenizers["gpt-2"]
    text = "x\n\tfor\n\twhile\n\n\n  y\n\n    z  \n\t\n  1"
    tokens = same.encode(text, True)
    retokenizer = Retokenizer(same, same)
    for at, end in itertools.combinations(range(1, len(tokens)), 2):
        retokenizer.follow(tokens[:at])
        came, _ = retokenizer.translate(tokens[at:end], [1.0] * (end - at))
        assert came == tokens[at:end], (at, end)


def test_a_vocabulary_without_some_characters(tokenizers: dict[str, LlamaTokenizer]) -> None:
    """Of an old log, with a control character in it: the model that has no token for it sees the rest."""
    plain = tokenizers["bytes"]

    class Deaf(Renamed):
        def encode(self, text: str, begins: bool) -> list[int]:
            return super().encode(text.replace("\x1b", ""), begins)

    deaf = Deaf(plain, {EOS_ID: b"<end>"})
    to_deaf = Retokenizer(plain, deaf)
    assert to_deaf.follow([*b"\x1b\x1bred\x1b[0m and on\x1b"]) == [*b"red[0m and on"]
    assert to_deaf.follow([*b"\x1b"]) == []
    assert to_deaf.follow([*b"\x1b!"]) == [*b"!"]
    back = Retokenizer(deaf, plain)
    back.follow([*b"red"])
    assert back.translate([*b"x\x1b"], [0.9] * 2) == ([], []), "it could not write that"
    fit = compare_texts(plain, deaf, ["fine", "not \x1b fine"])
    assert (fit.whole, fit.works) == (0.5, False)
    with pytest.raises(VocabularyMismatchError, match="does not round-trip"):
        Cutter(deaf).cut("\x1b", True)


def test_what_a_pair_loses(tokenizers: dict[str, LlamaTokenizer]) -> None:
    same = compare_texts(
        tokenizers["gpt-2"], tokenizers["gpt-2"], ["let us say\n  this;\n", "x = {1: 'a'}\n"]
    )
    assert (same.whole, same.kept_tokens, same.kept_texts, same.nothing) == (1.0, 1.0, 1.0, 0.0)
    assert (same.token_ratio, same.works) == (1.0, True)
    halves = compare_texts(tokenizers["bytes"], tokenizers["bytes"], ["漢字漢字漢字漢字"])
    assert halves.whole == 1.0
    assert halves.kept_tokens < 1.0, "a draft that ends in a character loses what it has of it"
    finer = compare_texts(tokenizers["gpt-2"], tokenizers["bytes"])
    coarser = compare_texts(tokenizers["bytes"], tokenizers["gpt-2"])
    assert finer.token_ratio == pytest.approx(1 / coarser.token_ratio)
    assert finer.token_ratio > 1.3
    assert 0.9 < finer.kept_tokens < 1.0, "words are cut off where the draft ends"
    assert coarser.kept_tokens > 0.99
    assert finer.works

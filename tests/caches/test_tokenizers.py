"""Loading of tokenizers: a GGUF and a tokenizer.json with the same vocabulary have the same fingerprint."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path

import numpy as np
import pytest

from suffixsvc.errors import (
    InvalidConfigError,
    InvalidInputError,
    ModelError,
    ModelNotFoundError,
    TokenizerMismatchError,
)
from suffixsvc_caches.tokenizers.load import TokenizerSource, load_tokenizer, require_fingerprint
from support.tiny_gguf import EOS_ID
from support.tiny_tokenizer import EOS, write_gguf, write_tokenizer

TEXTS = [
    "", "SELECT name FROM singer", "naïve café 日本 🎉\n\t ", "a\0b", "<|im_start|>user\n<|im_end|>",
    "\ufffd" * 3, "x" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_a_gguf_and_a_tokenizer_json_of_one_vocabulary(packed: bool, tmp_path: Path) -> None:
    """The GGUF pads its vocabulary, the tokenizer.json does not; ids and fingerprint are the same."""
    path = write_tokenizer(tmp_path / "tokenizer.json")
    if packed:
        path = tmp_path / "tokenizer.json.gz"
        path.write_bytes(gzip.compress((tmp_path / "tokenizer.json").read_bytes()))
    other = load_tokenizer(path, bos=EOS, eos=EOS)
    gguf = load_tokenizer(write_gguf(tmp_path / "m.gguf"))
    assert (other.vocab_size, gguf.vocab_size) == (259, 264)
    assert other.fingerprint == gguf.fingerprint
    for text, a, b in zip(TEXTS, other.encode_batch(TEXTS), gguf.encode_batch(TEXTS), strict=True):
        assert a.dtype == b.dtype == np.int32
        assert a.tolist() == b.tolist()
        assert other.decode(a) == gguf.decode(b) == text
    assert other.encode_batch([]) == gguf.encode_batch([]) == []
    assert other.encode_batch(["<|im_end|>"])[0].tolist() == [258]


def test_the_fingerprint_depends_on_special_tokens(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "tokenizer.json")
    sources = [TokenizerSource(path), TokenizerSource(path, eos=EOS), TokenizerSource(path, EOS, 258)]
    prints = [source.load().fingerprint for source in sources]
    assert len(set(prints)) == 3
    assert load_tokenizer(path, eos=EOS).fingerprint == prints[1]
    with pytest.raises(TokenizerMismatchError, match=r"tokenizer\.json has another") as caught:
        require_fingerprint(prints[0], prints[1], path.name)
    assert "--eos" in str(caught.value)
    assert write_tokenizer(tmp_path / "other.json", merges=True)
    assert load_tokenizer(tmp_path / "other.json").fingerprint not in prints


def test_the_fingerprint_does_not_depend_on_merges(tmp_path: Path) -> None:
    """docs/offline.md documents this."""
    whole = json.loads(write_tokenizer(tmp_path / "tokenizer.json", merges=True).read_text())
    unmerged = whole | {"model": whole["model"] | {"merges": []}}
    bare = whole | {"added_tokens": []}
    ids = {}
    for name, plain in {"whole": whole, "unmerged": unmerged, "bare": bare}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(plain))
        tokenizer = load_tokenizer(tmp_path / f"{name}.json", bos=EOS_ID, eos=EOS_ID)
        ids[name] = [tokenizer.fingerprint, *(len(each) for each in tokenizer.encode_batch(["the", EOS]))]
    fingerprint = ids["whole"][0]
    assert ids == {
        "whole": [fingerprint, 1, 1],
        "unmerged": [fingerprint, 3, 1],
        "bare": [fingerprint, 1, len(EOS)],
    }


def test_one_tokenizer_serves_many_threads(tmp_path: Path) -> None:
    for tokenizer in (
        load_tokenizer(write_tokenizer(tmp_path / "t.json", merges=True)),
        load_tokenizer(write_gguf(tmp_path / "m.gguf")),
    ):
        expected = [ids.tolist() for ids in tokenizer.encode_batch(TEXTS)]
        found: list[bool] = []

        def encode(tokenizer=tokenizer, expected=expected, found=found) -> None:  # type: ignore[no-untyped-def] # binds the loop's
            found.extend(
                [ids.tolist() for ids in tokenizer.encode_batch(TEXTS)] == expected for _ in range(20)
            )

        threads = [threading.Thread(target=encode) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [True] * 80


def test_the_name_of_a_downloaded_model_is_its_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`build --tokenizer smollm2-135m` did not accept names of models, unlike other verbs. It does not
    download models."""
    monkeypatch.setenv("SUFFIXSVC_HOME", str(tmp_path))
    with pytest.raises(ModelNotFoundError, match="suffixsvc models get smollm2-135m"):
        load_tokenizer(Path("smollm2-135m"))
    (tmp_path / "models").mkdir()
    file = write_gguf(tmp_path / "models" / "smollm2-135m.gguf")
    file.with_suffix(".json").write_text(json.dumps({"size": file.stat().st_size}))
    assert load_tokenizer(Path("smollm2-135m")).fingerprint == load_tokenizer(file).fingerprint
    with pytest.raises(InvalidConfigError, match="the name of a downloaded model"):
        load_tokenizer(Path("smollm"))


def test_files_that_are_not_tokenizers(tmp_path: Path) -> None:
    files = {
        "empty.json": b"",
        "other.json": b'{"a": 1}',
        "broken.json.gz": gzip.compress(b"{}")[:-4],
        "plain.json.gz": b"{}",
        "junk.bin": bytes(range(256)),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InvalidConfigError, match="cannot be read as a tokenizer"):
            load_tokenizer(tmp_path / name)
    for path in (tmp_path / "missing.json", tmp_path):
        with pytest.raises(InvalidConfigError, match="must be a GGUF"):
            load_tokenizer(path)
    for name, content in {
        "empty.gguf": b"",
        "cut.gguf": b"GGUF\3\0\0\0",
        "named.bin": b"GGUF" + bytes(99),
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ModelError):
            load_tokenizer(tmp_path / name)


def test_bos_and_eos_arguments(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "tokenizer.json")
    for eos in ("<|nothing|>", 9999):
        with pytest.raises(InvalidInputError, match="eos"):
            load_tokenizer(path, eos=eos)
    with pytest.raises(InvalidInputError, match="must be omitted"):
        load_tokenizer(write_gguf(tmp_path / "m.gguf"), eos=EOS)


@pytest.mark.model
def test_the_real_small_model(real_model: Path) -> None:
    tokenizer = load_tokenizer(real_model)
    assert tokenizer.vocab_size == 49_152
    assert load_tokenizer(real_model).fingerprint == tokenizer.fingerprint
    for text, ids in zip(TEXTS, tokenizer.encode_batch(TEXTS), strict=True):
        assert tokenizer.decode(ids) == text
        assert ids.max(initial=0) < tokenizer.vocab_size

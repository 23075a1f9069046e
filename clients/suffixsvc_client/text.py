"""Text codec for pipelines without token ids: encodes and decodes with a tokenizer.json.

    codec = TextCodec.load("tokenizer.json", eos="<|im_end|>")
    namespace = client.namespace("acme/qwen2.5-coder", tokenizer=codec.fingerprint)
    session = namespace.open_session(codec.encode(prompt))

Needs the ``tokenizers`` library: pip install 'suffixsvc[text]'.
"""

from __future__ import annotations

import functools
import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from suffixsvc.errors import InvalidConfigError, InvalidInputError, MissingExtraError
from suffixsvc.fingerprint import tokenizer_fingerprint
from suffixsvc.types import TokenArray, TokenIds
from suffixsvc.values import as_token_array

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: size limit of a tokenizer.json, decompressed; the largest known ones have about 40 MB
MAX_TOKENIZER_BYTES: Final = 128 << 20
_PIECE: Final = 1 << 18

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPM_SPACE = "\u2581"


class TextCodec:
    """A tokenizer with the operations that suffixsvc needs: ids, text, bytes of a token, fingerprint.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``.
        bos, eos: text or id of the special tokens, as in the model's GGUF. Both are part of the fingerprint,
            and a tokenizer.json does not name them. None: the model has none.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, bos: str | int | None = None, eos: str | int | None = None
    ) -> None:
        #: the library's own tokenizer
        self.library = tokenizer
        self.bos_id = self._special_id("bos", bos)
        self.eos_id = self._special_id("eos", eos)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        bos: str | int | None = None,
        eos: str | int | None = None,
        max_bytes: int = MAX_TOKENIZER_BYTES,
    ) -> TextCodec:
        """Read a tokenizer.json, plain or .gz.

        Args:
            max_bytes: size limit, decompressed; no more is read into memory.

        Raises:
            MissingExtraError: the library is not installed.
            InvalidConfigError: the file is missing, too large, or not a tokenizer.
        """
        try:
            from tokenizers import Tokenizer  # noqa: PLC0415 - optional, and slow to load
        except ModuleNotFoundError:
            raise MissingExtraError("text", "tokenizers") from None
        try:
            raw = _read(Path(path), max_bytes)
            tokenizer = Tokenizer.from_buffer(raw)
        except InvalidConfigError:
            raise
        except Exception as error:
            # the library raises bare Exceptions for everything
            raise InvalidConfigError(
                f"{path} cannot be read as a tokenizer",
                expected="a tokenizer.json of the tokenizers library",
                got=str(error)[:200],
            ) from None
        return cls(tokenizer, bos=bos, eos=eos)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> TokenArray:
        """Token ids of a text, int32[n]. Special tokens spelled out in the text become their ids."""
        ids = self.library.encode(text, add_special_tokens=add_special_tokens).ids
        return np.array(ids, np.int32)

    def encode_batch(self, texts: Sequence[str]) -> list[TokenArray]:
        """Token ids of each text, as :meth:`encode` without special tokens added; faster than one by one."""
        encoded = self.library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(each.ids, np.int32) for each in encoded]

    def decode(self, token_ids: TokenIds, *, skip_special_tokens: bool = False) -> str:
        """The text of tokens; bytes that are not a complete character become U+FFFD."""
        ids = as_token_array(token_ids).tolist()
        text: str = self.library.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token; empty for an unused id."""
        return self._bytes_by_id.get(token_id, b"")

    @functools.cached_property
    def vocab_size(self) -> int:
        """One more than the largest used id."""
        return max(self._bytes_by_id, default=-1) + 1

    @functools.cached_property
    def fingerprint(self) -> str:
        """The tokenizer's fingerprint, equal to that of a GGUF with the same tokens and special ids."""
        return tokenizer_fingerprint(self._bytes_by_id.items(), {"bos": self.bos_id, "eos": self.eos_id})

    @functools.cached_property
    def _bytes_by_id(self) -> dict[int, bytes]:
        to_bytes = _from_byte_alphabet if self._is_byte_level() else _from_spm
        vocab = self.library.get_vocab(with_added_tokens=False)
        added = self.library.get_added_tokens_decoder()
        spelled = {token_id: token.content.encode() for token_id, token in added.items()}
        return {token_id: to_bytes(token) for token, token_id in vocab.items()} | spelled

    def _is_byte_level(self) -> bool:
        parts = (self.library.decoder, self.library.pre_tokenizer)
        # The state of a part is its JSON; serialising the whole tokenizer takes a second.
        return any(_mentions(json.loads(part.__getstate__()), "ByteLevel") for part in parts if part)

    def _special_id(self, name: str, token: str | int | None) -> int | None:
        if token is None:
            return None
        found = self.library.token_to_id(token) if isinstance(token, str) else token
        if found is None or self.library.id_to_token(found) is None:
            raise InvalidInputError(
                f"{name} must be a token of this tokenizer", expected="its text or id", got=repr(token)[:80]
            )
        return int(found)


def _read(path: Path, limit: int) -> bytes:
    """The bytes of a file, decompressed if its name ends in .gz. Raises InvalidConfigError over the limit."""
    found = bytearray()
    with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
        while piece := file.read(_PIECE):
            if len(found) + len(piece) > limit:
                raise InvalidConfigError(
                    f"{path} is too large for a tokenizer",
                    expected=f"a tokenizer.json of at most {limit:,} bytes",
                    got="more",
                    remedy="Raise max_bytes of TextCodec.load, if it is one.",
                )
            found += piece
    return bytes(found)


def _mentions(part: Any, kind: str) -> bool:
    """Whether a pre-tokenizer or decoder is of this kind, or a sequence that contains one."""
    if not isinstance(part, dict):
        return False
    inner = part.get("decoders") or part.get("pretokenizers") or ()
    return part.get("type") == kind or any(_mentions(each, kind) for each in inner)


@functools.cache
def _byte_alphabet() -> dict[int, int]:
    """Code point -> byte of byte-level BPE: printable Latin-1 maps to itself, the rest from 256 up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    # The code points of the other bytes do not occur: map them to one that Latin-1 cannot encode.
    unwritten = dict.fromkeys(others, 0xFFFF)
    return unwritten | {byte: byte for byte in printable} | {256 + i: byte for i, byte in enumerate(others)}


def _from_byte_alphabet(token: str) -> bytes:
    try:
        return token.translate(_byte_alphabet()).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()  # not in the alphabet: an added token


def _from_spm(token: str) -> bytes:
    """The bytes of a SentencePiece token: U+2581 is a space, <0x0A> a byte without a token."""
    byte = _BYTE_TOKEN.fullmatch(token)
    if byte:
        return bytes([int(byte[1], 16)])
    return token.replace(_SPM_SPACE, " ").encode()

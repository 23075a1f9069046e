"""Which tokenizer a file is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from suffixsvc.errors import InvalidConfigError, InvalidInputError, TokenizerMismatchError

if TYPE_CHECKING:
    from suffixsvc_caches.tokenizers.base import Tokenizer

__all__ = ["TokenizerSource", "load_tokenizer", "require_fingerprint"]


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """Where a tokenizer comes from; see :func:`load_tokenizer`."""

    path: Path
    bos: str | int | None = None
    eos: str | int | None = None

    def load(self, threads: int = 1) -> Tokenizer:
        return load_tokenizer(self.path, bos=self.bos, eos=self.eos, threads=threads)


def load_tokenizer(
    path: Path,
    *,
    bos: str | int | None = None,
    eos: str | int | None = None,
    expected: str = "",
    threads: int = 1,
) -> Tokenizer:
    """The tokenizer of a GGUF (vocabulary only), or of a tokenizer.json, plain or .gz.

    Args:
        path: the file, or the name of a model of the registry that is downloaded.
        bos, eos: text or id of the special tokens, for a tokenizer.json: it does not say which they are, and
            both count in the fingerprint.
        expected: the fingerprint it must have; "" = any.
        threads: that encode a batch, for a GGUF.

    Raises:
        InvalidConfigError: no such file, or neither. MissingExtraError: the library for it is missing.
        ModelNotFoundError: a model of the registry that is not downloaded.
        InvalidInputError: bos and eos of a GGUF, or no tokens of this tokenizer.
        TokenizerMismatchError: another fingerprint than expected.
    """
    tokenizer = _load(path, bos, eos, threads)
    if expected:
        require_fingerprint(tokenizer.fingerprint, expected, str(path.name))
    return tokenizer


def require_fingerprint(fingerprint: str, expected: str, whose: str) -> None:
    """Refuse ids of another tokenizer. TokenizerMismatchError."""
    if fingerprint != expected:
        raise TokenizerMismatchError(
            f"{whose} has another tokenizer",
            expected=expected,
            got=fingerprint,
            remedy="Take the tokenizer of the model; for a tokenizer.json, --bos and --eos count too.",
        )


def _load(path: Path, bos: str | int | None, eos: str | int | None, threads: int) -> Tokenizer:
    path = _file(path)
    if _is_gguf(path):
        from suffixsvc_caches.tokenizers.gguf import GgufTokenizer  # noqa: PLC0415 - loads llama.cpp

        if bos is not None or eos is not None:
            raise InvalidInputError(
                "a GGUF names its special tokens itself",
                got="bos or eos",
                remedy="Leave --bos and --eos out.",
            )
        return GgufTokenizer(path, threads)
    from suffixsvc_caches.tokenizers.json_file import JsonTokenizer  # noqa: PLC0415 - only it needs the library

    return JsonTokenizer(path, bos=bos, eos=eos)


def _file(path: Path) -> Path:
    if path.is_file():
        return path
    from suffixsvc_driver import models  # noqa: PLC0415 - not where a file is given

    if str(path) in models.load_registry().models:
        return models.path(str(path))
    raise InvalidConfigError(
        f"no tokenizer at {path}",
        expected="a GGUF, a tokenizer.json, or the name of a downloaded model",
        got="no such file",
    )


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return path.suffix == ".gguf" or file.read(4) == b"GGUF"

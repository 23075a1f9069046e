"""Loading of tokenizers by file type."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from suffixsvc.errors import InvalidConfigError, InvalidInputError, TokenizerMismatchError

if TYPE_CHECKING:
    from suffixsvc_caches.tokenizers.base import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """Location of a tokenizer; see :func:`load_tokenizer`."""

    path: Path
    bos: str | int | None = None
    eos: str | int | None = None

    def load(self, threads: int = 1) -> Tokenizer:
        """Load the tokenizer; errors as :func:`load_tokenizer`."""
        return load_tokenizer(self.path, bos=self.bos, eos=self.eos, threads=threads)


def load_tokenizer(
    path: Path,
    *,
    bos: str | int | None = None,
    eos: str | int | None = None,
    threads: int = 1,
) -> Tokenizer:
    """Load the tokenizer of a GGUF (vocabulary only) or of a tokenizer.json, plain or .gz.

    Args:
        path: the file, or the name of a downloaded model of the registry.
        bos, eos: text or id of the special tokens, for a tokenizer.json, which does not record them; both are
            part of the fingerprint.
        threads: threads that encode a batch, for a GGUF.

    Raises:
        InvalidConfigError: no such file, or neither type. MissingExtraError: its library is not installed.
        ModelNotFoundError: a model of the registry that is not downloaded.
        InvalidInputError: bos or eos with a GGUF, or not tokens of this tokenizer.
    """
    path = _file(path)
    if _is_gguf(path):
        from suffixsvc_caches.tokenizers.gguf import GgufTokenizer  # noqa: PLC0415 - loads llama.cpp

        if bos is not None or eos is not None:
            raise InvalidInputError(
                "bos and eos must be omitted for a GGUF", remedy="Leave --bos and --eos out."
            )
        return GgufTokenizer(path, threads)
    from suffixsvc_caches.tokenizers.json_file import JsonTokenizer  # noqa: PLC0415 - only it needs the library

    return JsonTokenizer(path, bos=bos, eos=eos)


def require_fingerprint(fingerprint: str, expected: str, whose: str) -> None:
    """Check that ids belong to the expected tokenizer.

    Args:
        fingerprint: of the tokenizer that the ids belong to.
        expected: required fingerprint.
        whose: subject of the error message, such as a file.

    Raises:
        TokenizerMismatchError: the fingerprints differ.
    """
    if fingerprint != expected:
        raise TokenizerMismatchError(
            f"{whose} has another tokenizer",
            expected=expected,
            got=fingerprint,
            remedy="Use the model's tokenizer; for a tokenizer.json, --bos and --eos are part of it.",
        )


def no_tokenizer(log: Path) -> InvalidInputError:
    """Return the error for a log of texts that is read without a tokenizer."""
    return InvalidInputError(
        f"{log} must have token ids if there is no tokenizer",
        got="texts",
        remedy="Give a GGUF or a tokenizer.json with --tokenizer.",
    )


def _file(path: Path) -> Path:
    if path.is_file():
        return path
    import suffixsvc_models as models  # noqa: PLC0415 - only needed for names of the registry

    if str(path) in models.load_registry().models:
        return models.path(str(path))
    raise InvalidConfigError(
        f"tokenizer {path} must be a GGUF, a tokenizer.json, or the name of a downloaded model",
        got="no such file",
    )


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return path.suffix == ".gguf" or file.read(4) == b"GGUF"

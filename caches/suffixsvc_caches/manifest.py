"""The manifest beside a lookup cache: what the file itself cannot say.

llama.cpp's format has no header: neither whose tokens these are nor whether the file is whole can be told
from it. ``NAME.manifest.json`` says both, and where the counts come from. The same build writes the same
bytes: no times, no absolute paths, keys in a fixed order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Any, Final, Self

import numpy as np
import xxhash

from suffixsvc import __version__
from suffixsvc.errors import (
    InvalidConfigError,
    InvalidInputError,
    StoreCorruptError,
    StoreError,
    StoreForeignError,
)
from suffixsvc_caches.atomic import new_file, require_new
from suffixsvc_caches.lookup import STATIC_ORDER, LookupTable, read_lookup, write_lookup
from suffixsvc_caches.tokenizers import require_fingerprint

__all__ = [
    "MANIFEST_VERSION",
    "CacheFormat",
    "Manifest",
    "SourceFile",
    "TokenizerNote",
    "cache_format",
    "find_mismatches",
    "load_cache",
    "manifest_path",
    "read_manifest",
    "read_own_manifest",
    "require_new_cache",
    "write_cache",
    "write_manifest",
]

MANIFEST_VERSION: Final = 1
_SUFFIX: Final = ".manifest.json"
#: a manifest is small; whatever is larger is none
_MOST_BYTES: Final = 64 << 20
_PIECE: Final = 1 << 22


class CacheFormat(StrEnum):
    """What llama.cpp takes a lookup cache for; the files of both look the same."""

    #: ``--lookup-cache-static``: 2-grams of a corpus
    STATIC = "llama-lookup-static"
    #: ``--lookup-cache-dynamic``: n-grams of 1 to 4 tokens, of what was generated
    DYNAMIC = "llama-lookup-dynamic"


@dataclass(frozen=True, slots=True)
class TokenizerNote:
    """Whose token ids a cache has.

    Attributes:
        fingerprint: ``suffixsvc.fingerprint`` of the vocabulary; "" = unknown.
        vocab_size: ids are below it; 0 = unknown.
        name: the file it came from, or what somebody calls it.
    """

    fingerprint: str = ""
    vocab_size: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that a cache was made from: its name below the folder that was named, its bytes, their xxh3-64
    in 16 hexadecimal digits."""

    file: str
    bytes: int
    xxh3: str

    @classmethod
    def of(cls, path: Path, name: str | None = None) -> Self:
        """Read a file for its size and hash. StoreError."""
        size, xxh3 = _measured(path)
        return cls(path.name if name is None else name, size, xxh3)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a lookup cache is.

    Attributes:
        format: static or dynamic.
        file: name of the cache, without its folder.
        bytes, xxh3: of the cache; xxh3-64 in 16 hexadecimal digits.
        ngrams: records by the number of tokens of their n-gram, rising.
        pairs: followers of all records.
        count: sum of all counts.
        tokenizer: whose ids.
        sources: what was counted, in order.
        options: how, as plain JSON: filters, cuts, budget.
        made_by: name and version of the tool.
    """

    format: CacheFormat
    file: str
    bytes: int
    xxh3: str
    ngrams: dict[int, int]
    pairs: int
    count: int
    tokenizer: TokenizerNote = field(default_factory=TokenizerNote)
    sources: tuple[SourceFile, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    made_by: str = f"suffixsvc {__version__}"

    def __post_init__(self) -> None:
        names = [self.file, *(source.file for source in self.sources)]
        for name in names:
            if not name or PurePath(name).is_absolute() or ".." in PurePath(name).parts:
                raise InvalidInputError(
                    "a manifest names files below a folder", expected="a relative path", got=repr(name)[:80]
                )

    @classmethod
    def of(cls, path: Path, table: LookupTable, format: CacheFormat, **others: Any) -> Self:
        """Of a cache that was just written, from what was written; ``others`` are the other attributes."""
        size, xxh3 = _measured(path)
        return cls(format, path.name, size, xxh3, *_numbers(table), **others)

    def describes(self, cache: Path) -> bool:
        """Whether a cache has the bytes that this was written for, whatever its name. StoreError."""
        return (self.bytes, self.xxh3) == _measured(cache)

    def as_json(self) -> str:
        """The text of the file."""
        plain = {
            "manifest": MANIFEST_VERSION,
            **asdict(self),
            "ngrams": {str(n): self.ngrams[n] for n in sorted(self.ngrams)},
        }
        text = json.dumps(plain, indent=2, ensure_ascii=False) + "\n"
        try:
            text.encode()
        except (
            UnicodeEncodeError
        ):  # a file's name need not be text: half of a surrogate pair stands for a byte
            return json.dumps(plain, indent=2) + "\n"
        return text

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What :meth:`as_json` gave.

        Raises:
            StoreForeignError: no manifest, or of another version. StoreCorruptError: it does not have what a
                manifest has.
        """
        try:
            plain = json.loads(text)
        except (ValueError, RecursionError):
            raise StoreForeignError("not a manifest", expected="a JSON object") from None
        if not isinstance(plain, dict) or "manifest" not in plain:
            raise StoreForeignError("not a manifest", expected='a JSON object with "manifest"')
        if plain["manifest"] != MANIFEST_VERSION or isinstance(plain["manifest"], bool):
            raise StoreForeignError(
                "a manifest of another version", expected=MANIFEST_VERSION, got=repr(plain["manifest"])[:80]
            )
        try:
            return cls(
                format=CacheFormat(plain["format"]),
                file=_text(plain["file"]),
                bytes=_number(plain["bytes"]),
                xxh3=_text(plain["xxh3"]),
                ngrams={int(n): _number(count) for n, count in plain["ngrams"].items()},
                pairs=_number(plain["pairs"]),
                count=_number(plain["count"]),
                tokenizer=TokenizerNote(
                    _text(plain["tokenizer"]["fingerprint"]),
                    _number(plain["tokenizer"]["vocab_size"]),
                    _text(plain["tokenizer"]["name"]),
                ),
                sources=tuple(
                    SourceFile(_text(source["file"]), _number(source["bytes"]), _text(source["xxh3"]))
                    for source in plain["sources"]
                ),
                options=dict(plain["options"]),
                made_by=_text(plain["made_by"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreCorruptError(
                "a manifest lacks something or has it wrong", got=f"{type(error).__name__}: {error}"[:120]
            ) from None


def manifest_path(cache: Path) -> Path:
    """Where the manifest of a cache is."""
    return cache.parent / (cache.name + _SUFFIX)  # "." has no name to add to


def write_manifest(cache: Path, manifest: Manifest, *, force: bool = False) -> Path:
    """Write the manifest beside its cache; errors as ``suffixsvc_caches.atomic.new_file``."""
    path = manifest_path(cache)
    with new_file(path, force=force) as file:
        file.write(manifest.as_json().encode())
    return path


def require_new_cache(cache: Path, *, force: bool) -> None:
    """Refuse to replace a cache or its manifest, but for ``force``. InvalidInputError."""
    for path in (cache, manifest_path(cache)):
        require_new(path, force=force)


def write_cache(
    cache: Path,
    table: LookupTable,
    format: CacheFormat,
    *,
    tokenizer: TokenizerNote,
    sources: Sequence[Path],
    options: Mapping[str, Any],
    force: bool = False,
) -> Manifest:
    """Write a cache that was made of others, and its manifest.

    Args:
        sources: the files it was made of; they are read for their hashes, before anything is replaced.

    Raises:
        InvalidInputError: one exists, and not ``force``. StoreError: the disk; no half file is left.
    """
    made_of = tuple(map(SourceFile.of, sources))
    write_lookup(cache, table, force=force)
    manifest = Manifest.of(cache, table, format, tokenizer=tokenizer, sources=made_of, options=options)
    write_manifest(cache, manifest, force=force)
    return manifest


def read_manifest(cache: Path) -> Manifest | None:
    """The manifest of a cache; None where it has none.

    Raises:
        StoreError: it cannot be read. StoreForeignError, StoreCorruptError: see :meth:`Manifest.from_json`.
    """
    path = manifest_path(cache)
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot read {path}", got=error.strerror) from None
    try:
        return Manifest.from_json(_decoded(raw))
    except (StoreForeignError, StoreCorruptError, InvalidInputError) as error:
        kind = StoreForeignError if isinstance(error, StoreForeignError) else StoreCorruptError
        raise kind(f"{path}: {error.message}", expected=error.expected, got=error.got) from None


def read_own_manifest(cache: Path, fingerprint: str = "") -> tuple[Manifest | None, Manifest | None]:
    """The manifest of a cache, and one that was written for another file; one of them at least is None.

    Args:
        fingerprint: of the tokenizer whose ids are wanted; "" = any. A cache that does not say is believed.

    Raises:
        TokenizerMismatchError: its manifest names another tokenizer. Errors of :func:`read_manifest`.
    """
    manifest = read_manifest(cache)
    if manifest is not None and not manifest.describes(cache):
        return None, manifest
    if manifest is not None and fingerprint and manifest.tokenizer.fingerprint:
        require_fingerprint(manifest.tokenizer.fingerprint, fingerprint, str(cache))
    return manifest, None


def find_mismatches(cache: Path, manifest: Manifest, table: LookupTable) -> Iterator[str]:
    """What a manifest says and a cache is not, in words. Its name does not count: files are renamed.

    Args:
        table: the cache as it was read.
    """
    size, xxh3 = _measured(cache)
    ngrams, pairs, count = _numbers(table)
    for what, expected, got in (
        ("bytes", manifest.bytes, size),
        ("xxh3", manifest.xxh3, xxh3),
        ("ngrams", dict(sorted(manifest.ngrams.items())), ngrams),
        ("pairs", manifest.pairs, pairs),
        ("count", manifest.count, count),
    ):
        if expected != got:
            yield f"the manifest says {what} {expected}, the cache has {got}"
    vocab_size = manifest.tokenizer.vocab_size
    if vocab_size and table.largest_token >= vocab_size:
        yield f"the manifest says a vocabulary of {vocab_size}, the cache has token {table.largest_token}"


def load_cache(cache: Path, fingerprint: str = "") -> tuple[LookupTable, Manifest | None]:
    """A lookup cache and its manifest, where it has one.

    Args:
        fingerprint: see :func:`read_own_manifest`.

    Raises:
        StoreForeignError: the manifest was written for another file. Errors of ``read_lookup`` and
            :func:`read_own_manifest`.
    """
    manifest, stray = read_own_manifest(cache, fingerprint)
    if stray is not None:
        raise StoreForeignError(
            f"{manifest_path(cache)} was written for another file",
            expected=f"{stray.bytes} bytes, xxh3 {stray.xxh3}",
            got=f"{cache.stat().st_size} bytes",
            remedy="If you know whose tokens the cache has, `suffixsvc cache import` writes a new one.",
        )
    return read_lookup(cache), manifest


def cache_format(table: LookupTable, manifest: Manifest | None, kind: str = "auto") -> CacheFormat:
    """What a cache is: as ``kind`` says ("static" or "dynamic"); if that is "auto", as its manifest does;
    else static if it has nothing but 2-grams. InvalidConfigError: another ``kind``."""
    kinds = {"static": CacheFormat.STATIC, "dynamic": CacheFormat.DYNAMIC}
    if kind in kinds:
        return kinds[kind]
    if kind != "auto":
        raise InvalidConfigError("no kind of lookup cache", expected="static, dynamic or auto", got=kind[:80])
    if manifest is not None:
        return manifest.format
    return CacheFormat.STATIC if (table.orders() == STATIC_ORDER).all() else CacheFormat.DYNAMIC


def _numbers(table: LookupTable) -> tuple[dict[int, int], int, int]:
    orders, records = np.unique(table.orders(), return_counts=True)
    return (
        dict(zip(orders.tolist(), records.tolist(), strict=True)),
        len(table.tokens),
        int(table.counts.sum(dtype=np.int64)),
    )


def _measured(path: Path) -> tuple[int, str]:
    """Bytes of a file and their xxh3-64. StoreError."""
    digest, size = xxhash.xxh3_64(), 0
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
                size += len(piece)
    except OSError as error:
        raise StoreError(f"cannot read {path}", got=error.strerror) from None
    return size, digest.hexdigest()


def _decoded(raw: bytes) -> str:
    if len(raw) > _MOST_BYTES:
        raise StoreForeignError("not a manifest", expected=f"at most {_MOST_BYTES} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise StoreForeignError("not a manifest", expected="UTF-8") from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"{value!r} is no number >= 0")
    return value

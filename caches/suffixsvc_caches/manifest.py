"""Manifests of lookup caches: tokenizer, checksum and sources of a file, as JSON beside it.

llama.cpp's format has no header: it records neither the tokenizer nor the length of the file.
``NAME.manifest.json`` records both, and the sources of the counts. The same build writes the same bytes: no
times, no absolute paths, keys in a fixed order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Any, Final, Self, get_args, get_origin, get_type_hints

import numpy as np
import xxhash

from suffixsvc import __version__
from suffixsvc.errors import InvalidInputError, StoreCorruptError, StoreError, StoreForeignError
from suffixsvc_caches.atomic import new_file
from suffixsvc_caches.errors import at_place
from suffixsvc_caches.lookup.table import LookupTable
from suffixsvc_caches.tokenizers.load import require_fingerprint

MANIFEST_VERSION: Final = 1
_SUFFIX: Final = ".manifest.json"
#: larger files are refused as manifests
_MOST_BYTES: Final = 64 << 20
_PIECE: Final = 1 << 22

_Text = str | bytes


class CacheFormat(StrEnum):
    """Role of a lookup cache in llama.cpp; the file format of both is the same."""

    #: ``--lookup-cache-static``: 2-grams of a corpus
    STATIC = "llama-lookup-static"
    #: ``--lookup-cache-dynamic``: n-grams of 1 to 4 tokens, of what was generated
    DYNAMIC = "llama-lookup-dynamic"


@dataclass(frozen=True, slots=True)
class TokenizerNote:
    """Identity of the tokenizer whose ids a cache has.

    Attributes:
        fingerprint: ``suffixsvc.fingerprint`` of the vocabulary; "" = unknown.
        vocab_size: ids are below it; 0 = unknown.
        name: file name or display name.
    """

    fingerprint: str = ""
    vocab_size: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """Source file of a cache.

    Attributes:
        file: path relative to the folder that was given.
        bytes: size.
        xxh3: xxh3-64 of the contents, 16 hexadecimal digits.
    """

    file: str
    bytes: int
    xxh3: str

    @classmethod
    def of(cls, path: Path, name: str | None = None) -> Self:
        """Read the size and hash of a file. StoreError: it cannot be read."""
        size, xxh3 = _size_and_hash(path)
        return cls(path.name if name is None else name, size, xxh3)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Description of a lookup cache.

    Attributes:
        format: static or dynamic.
        file: name of the cache, without its folder.
        bytes, xxh3: of the cache; xxh3-64 in 16 hexadecimal digits.
        ngrams: number of records by length of the n-gram, rising.
        pairs: number of followers of all records.
        count: sum of all counts.
        tokenizer: identity of the tokenizer.
        sources: files that were counted, in order.
        options: how they were counted, as plain JSON: filters, cuts, budget.
        made_by: name and version of the program.
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
                    "file names in a manifest must be relative paths", got=repr(name)[:80]
                )

    @classmethod
    def of(cls, path: Path, table: LookupTable, format: CacheFormat, **others: Any) -> Self:
        """Describe a cache file and the table written to it; ``others`` are the remaining attributes."""
        size, xxh3 = _size_and_hash(path)
        orders, records = np.unique(table.orders(), return_counts=True)
        ngrams = dict(zip(orders.tolist(), records.tolist(), strict=True))
        count = int(table.counts.sum(dtype=np.int64))
        return cls(format, path.name, size, xxh3, ngrams, len(table.tokens), count, **others)

    def matches(self, cache: Path) -> bool:
        """Whether size and hash of a cache are those of this manifest. StoreError: it cannot be read."""
        return (self.bytes, self.xxh3) == _size_and_hash(cache)

    def as_json(self) -> str:
        """Return the text of the manifest file."""
        plain = {
            "manifest": MANIFEST_VERSION,
            **asdict(self),
            "ngrams": {str(n): self.ngrams[n] for n in sorted(self.ngrams)},
        }
        text = json.dumps(plain, indent=2, ensure_ascii=False)
        # Lone surrogates, which stand for bytes of file names that are not text, are escaped.
        return text.encode(errors="backslashreplace").decode() + "\n"

    @classmethod
    def from_json(cls, text: _Text) -> Self:
        """Parse the text of :meth:`as_json`.

        Raises:
            StoreForeignError: not a manifest, or one of another version.
            StoreCorruptError: a field is missing or malformed.
        """
        try:
            plain = json.loads(text)
        except (ValueError, RecursionError):
            plain = None
        if not isinstance(plain, dict) or "manifest" not in plain:
            raise StoreForeignError("not a manifest", expected='a JSON object with "manifest"')
        version = plain["manifest"]
        if version != MANIFEST_VERSION or isinstance(version, bool):
            raise StoreForeignError(
                "unsupported manifest version", expected=MANIFEST_VERSION, got=repr(version)[:80]
            )
        try:
            return _parse(cls, plain)  # type: ignore[no-any-return] # an instance of the class
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreCorruptError(
                "a field of the manifest is missing or malformed",
                got=f"{type(error).__name__}: {error}"[:120],
            ) from None


def manifest_path(cache: Path) -> Path:
    """Return the path of a cache's manifest."""
    return cache.parent / (cache.name + _SUFFIX)  # with_name() fails for "."


def write_manifest(cache: Path, manifest: Manifest, *, force: bool = False) -> Path:
    """Write the manifest of a cache and return its path; errors as ``suffixsvc_caches.atomic.new_file``."""
    path = manifest_path(cache)
    with new_file(path, force=force) as file:
        file.write(manifest.as_json().encode())
    return path


def read_manifest(cache: Path) -> Manifest | None:
    """Return the manifest of a cache; None if there is none.

    Raises:
        StoreError: it cannot be read. StoreForeignError, StoreCorruptError: see :meth:`Manifest.from_json`.
    """
    path = manifest_path(cache)
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise StoreForeignError("not a manifest", expected=f"at most {_MOST_BYTES} bytes")
        return Manifest.from_json(raw)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot read {path}", got=error.strerror) from None
    except StoreError as error:
        raise at_place(path, error) from None


def read_matching_manifest(cache: Path, fingerprint: str = "") -> tuple[Manifest | None, Manifest | None]:
    """Return (the cache's manifest, a stale manifest that describes another file); at least one is None.

    Args:
        cache: the lookup cache.
        fingerprint: required tokenizer; "" = any. A manifest without a fingerprint is accepted.

    Raises:
        TokenizerMismatchError: the manifest names another tokenizer. Errors of :func:`read_manifest`.
    """
    manifest = read_manifest(cache)
    if manifest is not None and not manifest.matches(cache):
        return None, manifest
    if manifest is not None and fingerprint and manifest.tokenizer.fingerprint:
        require_fingerprint(manifest.tokenizer.fingerprint, fingerprint, str(cache))
    return manifest, None


def find_mismatches(cache: Path, manifest: Manifest, table: LookupTable) -> Iterator[str]:
    """Yield the differences between a manifest and its cache as messages; the file name is not compared.

    Args:
        cache: the file.
        manifest: its manifest.
        table: the records of the file.
    """
    found = Manifest.of(cache, table, manifest.format)
    for what in ("bytes", "xxh3", "ngrams", "pairs", "count"):
        expected, got = getattr(manifest, what), getattr(found, what)
        if expected != got:
            yield f"the manifest says {what} {expected}, the cache has {got}"
    vocab_size = manifest.tokenizer.vocab_size
    if vocab_size and table.largest_token >= vocab_size:
        yield f"the manifest says a vocabulary of {vocab_size}, the cache has token {table.largest_token}"


def _size_and_hash(path: Path) -> tuple[int, str]:
    """Size of a file in bytes and xxh3-64 of its contents. StoreError: it cannot be read."""
    digest, size = xxhash.xxh3_64(), 0
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
                size += len(piece)
    except OSError as error:
        raise StoreError(f"cannot read {path}", got=error.strerror) from None
    return size, digest.hexdigest()


def _parse(kind: Any, value: Any) -> Any:
    """Convert a JSON value to the type of a field. TypeError, KeyError, ValueError: it is of another type."""
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        return kind(**{each.name: _parse(hints[each.name], value[each.name]) for each in fields(kind)})
    if get_origin(kind) is tuple:
        return tuple(_parse(get_args(kind)[0], each) for each in value)
    if get_origin(kind) is Mapping:
        return dict(value)
    if get_origin(kind) is dict:
        return {int(key): _parse(int, number) for key, number in value.items()}
    if issubclass(kind, StrEnum):
        return kind(value)
    if not isinstance(value, kind) or isinstance(value, bool) or (kind is int and value < 0):
        raise TypeError(f"{value!r} is not {'a number >= 0' if kind is int else 'a string'}")
    return value

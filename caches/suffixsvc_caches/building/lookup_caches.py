"""Lookup caches of a build or an export: the merge outputs that they need, their files and manifests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash

from suffixsvc.errors import InvalidConfigError
from suffixsvc.lookup_records import RecordFile
from suffixsvc_caches.atomic import new_file
from suffixsvc_caches.building.selection import select
from suffixsvc_caches.counting.merging import Records
from suffixsvc_caches.lookup.algorithm import thresholds
from suffixsvc_caches.lookup.pruning import file_words, require_budget
from suffixsvc_caches.lookup.table import MAX_ORDER
from suffixsvc_caches.manifest import CacheFormat, Manifest, manifest_path, write_manifest

#: Largest counts: llama.cpp multiplies a count of the context or dynamic cache by 100 times a static count in
#: int32; 4,000 x 100 x 5,000 fits, with headroom for the counts that a server adds.
_MAX_COUNTS: Final = {CacheFormat.STATIC: 4_000, CacheFormat.DYNAMIC: 5_000}
_MOST: Final = 2**31 - 1
_PIECE: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class LookupSpec:
    """Specification of a lookup cache to write.

    Attributes:
        path: the file.
        budget_bytes: size limit; records are selected for it (:mod:`.selection`). None: all records.
        compact: only records that change a draft, even without a budget.
        min_count: minimum count of a follower.
        top: maximum number of followers of an n-gram; 0 = all.
        exact_counts: write exact counts, up to int32. Otherwise counts are scaled for llama.cpp's products,
            and the two best followers never have equal counts.
    """

    path: Path
    budget_bytes: int | None = None
    compact: bool = False
    min_count: int = 1
    top: int = 0
    exact_counts: bool = False

    def __post_init__(self) -> None:
        require_budget(self.budget_bytes)
        if not (1 <= self.min_count <= _MOST and 0 <= self.top <= _MOST):
            raise InvalidConfigError(
                f"min_count must be 1 .. {_MOST} and top 0 .. {_MOST}",
                got=f"{self.min_count} and {self.top}",
            )  # fmt: skip
        if self.selects and self.top > 1:
            raise InvalidConfigError("top must be 0 or 1 with budget_bytes or compact", got=self.top)

    @property
    def selects(self) -> bool:
        """Whether records are selected by expected hits."""
        return self.compact or self.budget_bytes is not None


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A lookup cache that was written, and the manifest beside it."""

    path: Path
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class LookupFiles:
    """Lookup caches that were written."""

    static: WrittenFile | None = None
    dynamic: WrittenFile | None = None


@dataclass(frozen=True, slots=True)
class LookupCaches:
    """A static cache, a dynamic one, or both, from the same counts.

    Raises:
        InvalidConfigError: files have the same path.
    """

    static: LookupSpec | None = None
    dynamic: LookupSpec | None = None

    def __post_init__(self) -> None:
        paths = self.output_paths
        places = [path.parent.resolve() / path.name for path in paths]
        for i, place in enumerate(places):
            if place in places[:i]:
                raise InvalidConfigError("the caches must have different files", got=paths[i])

    @property
    def paths(self) -> list[Path]:
        """The lookup caches."""
        return [each.path for each in (self.static, self.dynamic) if each is not None]

    @property
    def output_paths(self) -> list[Path]:
        """The lookup caches and their manifests."""
        return [path for cache in self.paths for path in (cache, manifest_path(cache))]

    @property
    def wanted(self) -> list[RecordFile]:
        """The merge outputs that they need."""
        return [*_wanted(self.static, CacheFormat.STATIC), *_wanted(self.dynamic, CacheFormat.DYNAMIC)]

    def write(
        self, found: Sequence[Records], *, force: bool, memory_bytes: int | None = None, **origin: Any
    ) -> LookupFiles:
        """Write the files and their manifests.

        Args:
            found: merged records, one for each of :attr:`wanted`.
            force: replace existing files.
            memory_bytes: memory for the selection of records; None = no limit.
            origin: tokenizer, sources and options of the counts, for the manifests.

        Raises:
            InvalidInputError: a file exists, and not ``force``.
            StoreError: a file cannot be written; no partial file is left.
        """
        split = len(_wanted(self.static, CacheFormat.STATIC))
        how = (force, memory_bytes, origin)
        return LookupFiles(
            _write(self.static, CacheFormat.STATIC, found[:split], *how) if self.static else None,
            _write(self.dynamic, CacheFormat.DYNAMIC, found[split:], *how) if self.dynamic else None,
        )


def _wanted(spec: LookupSpec | None, kind: CacheFormat) -> list[RecordFile]:
    if spec is None:
        return []
    static = kind is CacheFormat.STATIC
    rules = [(order, *rule) for order, rule in thresholds(static=static).items()]
    if spec.selects:  # candidates: n-grams that fire, with their best follower
        return [
            RecordFile(order, MAX_ORDER + 1, spec.min_count, 1, 0, least, percent, firing=True, totals=True)
            for order, least, percent in rules
        ]
    # In a dynamic cache the best follower needs two thirds of the occurrences, so there are no ties.
    unique = static and not spec.exact_counts
    most = _max_count(spec, kind)
    return [
        RecordFile(order, MAX_ORDER, spec.min_count, spec.top, most, least, percent, unique=unique)
        for order, least, percent in rules
    ]


def _max_count(spec: LookupSpec, kind: CacheFormat) -> int:
    return 0 if spec.exact_counts else _MAX_COUNTS[kind]


def _write(
    spec: LookupSpec,
    kind: CacheFormat,
    found: Sequence[Records],
    force: bool,
    memory_bytes: int | None,
    origin: Mapping[str, Any],
) -> WrittenFile:
    most, least = _max_count(spec, kind), 0
    if spec.selects:
        selected, least = select(found, spec.budget_bytes, memory_bytes)
        rows = file_words(selected, most)  # records with one follower each, by order
        pieces: Iterable[bytes] = (np.ascontiguousarray(each, "<i4").tobytes() for each in rows)
        numbers = list(map(len, rows))
        pairs, count = sum(numbers), sum(int(each[:, -1].sum(dtype=np.int64)) for each in rows)
    else:
        pieces = _pieces(found)
        numbers = [each.records for each in found]
        pairs, count = sum(each.pairs for each in found), sum(each.count_sum for each in found)
    size, digest = 0, xxhash.xxh3_64()
    with new_file(spec.path, force=force) as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            size += len(piece)
    options = {
        **origin["options"],
        "budget_bytes": spec.budget_bytes,
        "compact": spec.selects,
        "min_count": spec.min_count,
        "top": spec.top,
        "max_count": most,
        "left_out_below": least,  # because of the memory limit of the selection
    }
    ngrams = {each.wanted.order: number for each, number in zip(found, numbers, strict=True) if number}
    manifest = Manifest(
        kind, spec.path.name, size, digest.hexdigest(), ngrams, pairs, count, **{**origin, "options": options}
    )
    write_manifest(spec.path, manifest, force=True)  # an existing one describes the old file
    return WrittenFile(spec.path, manifest)


def _pieces(found: Sequence[Records]) -> Iterator[bytes]:
    for path in (path for each in found for path in each.parts):
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                yield piece

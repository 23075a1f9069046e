"""Lookup caches of a build or an export: the merge outputs that they need, their files and manifests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from suffixsvc import __version__
from suffixsvc.errors import InvalidConfigError
from suffixsvc_caches.building.files import WrittenFile, all_records, write_records, write_rows
from suffixsvc_caches.building.selection import candidates, select
from suffixsvc_caches.counting import RecordFile, Records
from suffixsvc_caches.lookup.pruning import require_budget
from suffixsvc_caches.lookup.table import MAX_ORDER, STATIC_ORDER
from suffixsvc_caches.manifest import (
    CacheFormat,
    Manifest,
    SourceFile,
    TokenizerNote,
    manifest_path,
    write_manifest,
)

__all__ = [
    "DYNAMIC_MAX_COUNT",
    "STATIC_MAX_COUNT",
    "LookupCaches",
    "LookupFiles",
    "LookupSpec",
    "Provenance",
    "output_paths",
]

#: llama.cpp multiplies a count of the context or dynamic cache by 100 times a static count in int32; 4,000 x
#: 100 x 5,000 fits, with headroom for the counts that a server adds
STATIC_MAX_COUNT: Final = 4_000
DYNAMIC_MAX_COUNT: Final = 5_000
_MOST: Final = 2**31 - 1


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
class Provenance:
    """Origin of the counts of caches, for their manifests.

    Attributes:
        tokenizer: identity of the tokenizer.
        sources: the files counted.
        options: how they were read and counted, as plain JSON.
    """

    tokenizer: TokenizerNote
    sources: tuple[SourceFile, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LookupFiles:
    """Lookup caches that were written."""

    static: WrittenFile | None = None
    dynamic: WrittenFile | None = None


def output_paths(specs: Iterable[LookupSpec | None]) -> list[Path]:
    """Return the files that a build writes: caches and their manifests.

    Raises:
        InvalidConfigError: two of them have the same path.
    """
    paths = [path for each in specs if each for path in (each.path, manifest_path(each.path))]
    places = [path.parent.resolve() / path.name for path in paths]
    for i, place in enumerate(places):
        if place in places[:i]:
            raise InvalidConfigError("the caches must have different files", got=paths[i])
    return paths


class LookupCaches:
    """A static cache, a dynamic one, or both, from the same counts.

    Attributes:
        wanted: the merge outputs that they need.

    Raises:
        InvalidConfigError: both have the same path.
    """

    def __init__(self, static: LookupSpec | None, dynamic: LookupSpec | None) -> None:
        output_paths((static, dynamic))
        self._static = static
        self._dynamic = dynamic
        self._of_static = _wanted(static, is_static=True) if static else []
        self._of_dynamic = _wanted(dynamic, is_static=False) if dynamic else []
        self.wanted: list[RecordFile] = [*self._of_static, *self._of_dynamic]

    def write(
        self,
        found: Sequence[Records],
        provenance: Provenance,
        *,
        force: bool,
        memory_bytes: int | None = None,
    ) -> LookupFiles:
        """Write the files and their manifests.

        Args:
            found: merged records, one for each of :attr:`wanted`.
            provenance: for the manifests.
            force: replace existing files.
            memory_bytes: memory for the selection of records; None = no limit.

        Raises:
            InvalidInputError: a file exists, and not ``force``.
            StoreError: a file cannot be written; no partial file is left.
        """
        of_static, of_dynamic = found[: len(self._of_static)], found[len(self._of_static) :]
        how = (provenance, force, memory_bytes)
        return LookupFiles(
            _write(self._static, True, of_static, *how) if self._static else None,
            _write(self._dynamic, False, of_dynamic, *how) if self._dynamic else None,
        )


def _wanted(each: LookupSpec, *, is_static: bool) -> list[RecordFile]:
    if each.selects:
        orders = [STATIC_ORDER] if is_static else list(range(1, MAX_ORDER + 1))
        return candidates(orders, static=is_static, min_count=each.min_count)
    return all_records(
        static=is_static,
        min_count=each.min_count,
        top=each.top,
        max_count=_max_count(each, is_static),
        unique=not each.exact_counts,
    )


def _write(
    each: LookupSpec,
    is_static: bool,
    records: Sequence[Records],
    provenance: Provenance,
    force: bool,
    memory_bytes: int | None,
) -> WrittenFile:
    most = _max_count(each, is_static)
    least = 0
    if each.selects:
        selection, least = select(records, each.budget_bytes, memory_bytes)
        written = write_rows(each.path, selection.words(most), force=force)
    else:
        written = write_records(each.path, records, force=force)
    manifest = Manifest(
        CacheFormat.STATIC if is_static else CacheFormat.DYNAMIC,
        each.path.name,
        written.size_bytes,
        written.xxh3,
        written.ngrams,
        written.pairs,
        written.count,
        provenance.tokenizer,
        provenance.sources,
        {**provenance.options, **_options(each, most, least)},
        f"suffixsvc {__version__}",
    )
    write_manifest(each.path, manifest, force=True)  # an existing one describes the old file
    return written


def _options(each: LookupSpec, most: int, least: int) -> dict[str, Any]:
    """Options of a file for its manifest."""
    return {
        "budget_bytes": each.budget_bytes,
        "compact": each.selects,
        "min_count": each.min_count,
        "top": each.top,
        "max_count": most,
        "left_out_below": least,  # because of the memory limit of the selection
    }


def _max_count(each: LookupSpec, is_static: bool) -> int:
    if each.exact_counts:
        return 0
    return STATIC_MAX_COUNT if is_static else DYNAMIC_MAX_COUNT

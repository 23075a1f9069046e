"""The lookup caches of one build or export: which records they need, and the files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from suffixsvc import __version__
from suffixsvc.errors import InvalidConfigError
from suffixsvc_caches.building.files import Written, all_records, write_records, write_rows
from suffixsvc_caches.building.selection import candidates, choose
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

#: llama.cpp multiplies a count of the context or the dynamic cache by 100 times one of the static cache, in
#: int32: 4,000 x 100 x 5,000 fits, with room for what a server counts on top
STATIC_MAX_COUNT: Final = 4_000
DYNAMIC_MAX_COUNT: Final = 5_000
_MOST: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class LookupSpec:
    """A lookup cache to be written.

    Attributes:
        path: the file.
        budget_bytes: how large it may be; what it holds is then chosen (:mod:`.selection`). None: all.
        compact: even without a budget only what changes a draft.
        min_count: followers seen less often are left out.
        top: followers of an n-gram at most; 0 = all.
        exact_counts: counts as counted, up to int32. Otherwise they are kept small enough for llama.cpp's
            products, and two best followers never have the same.
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
                "that leaves no record", expected=f"min_count 1 .. {_MOST}, top 0 (all) .. {_MOST}",
                got=f"{self.min_count} and {self.top}",
            )  # fmt: skip
        if self.chosen and self.top > 1:
            raise InvalidConfigError(
                "a cache that is made small has one follower for each n-gram",
                expected="top 0 or 1, or no budget",
                got=f"top {self.top}",
            )

    @property
    def chosen(self) -> bool:
        """Whether records are chosen by what they are worth."""
        return self.compact or self.budget_bytes is not None


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where the counts of caches come from, for their manifests.

    Attributes:
        tokenizer: whose ids.
        sources: the files counted.
        options: how they were read and counted, as plain JSON.
    """

    tokenizer: TokenizerNote
    sources: tuple[SourceFile, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LookupFiles:
    """What was written."""

    static: Written | None = None
    dynamic: Written | None = None


def output_paths(specs: Iterable[LookupSpec | None]) -> list[Path]:
    """The files that are written: caches and their manifests.

    Raises:
        InvalidConfigError: one would take the place of another.
    """
    paths = [path for each in specs if each for path in (each.path, manifest_path(each.path))]
    places = [path.parent.resolve() / path.name for path in paths]
    for i, place in enumerate(places):
        if place in places[:i]:
            raise InvalidConfigError("both caches have the same name", expected="a file each", got=paths[i])
    return paths


class LookupCaches:
    """A static cache, a dynamic one, or both, from one count.

    Attributes:
        wanted: the records they need.

    Raises:
        InvalidConfigError: one would take the place of the other.
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
        """Write the files, each with its manifest, from the records found, one for each that is wanted.

        Args:
            memory_bytes: to choose records in; None: no limit.

        Raises:
            InvalidInputError: a file exists, and not ``force``. StoreError: the disk; no half file is left.
        """
        of_static, of_dynamic = found[: len(self._of_static)], found[len(self._of_static) :]
        how = (provenance, force, memory_bytes)
        return LookupFiles(
            _write(self._static, True, of_static, *how) if self._static else None,
            _write(self._dynamic, False, of_dynamic, *how) if self._dynamic else None,
        )


def _wanted(each: LookupSpec, *, is_static: bool) -> list[RecordFile]:
    if each.chosen:
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
) -> Written:
    most = _max_count(each, is_static)
    least = 0
    if each.chosen:
        chosen, least = choose(records, each.budget_bytes, memory_bytes)
        written = write_rows(each.path, chosen.words(most), force=force)
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
    write_manifest(each.path, manifest, force=True)  # an old one would belong to another file
    return written


def _options(each: LookupSpec, most: int, least: int) -> dict[str, Any]:
    """How the records of a file were cut."""
    return {
        "budget_bytes": each.budget_bytes,
        "compact": each.chosen,
        "min_count": each.min_count,
        "top": each.top,
        "max_count": most,
        "left_out_below": least,  # for want of memory to choose in
    }


def _max_count(each: LookupSpec, is_static: bool) -> int:
    if each.exact_counts:
        return 0
    return STATIC_MAX_COUNT if is_static else DYNAMIC_MAX_COUNT

"""Sealed segments: immutable, memory-mapped files of outputs that sessions draft from in place.

``docs/format.md`` describes the file, ``csrc/segment/query/segment.h`` the queries and the other methods of
:class:`Segment`. Drafting queries segments in C++; this module builds, merges and checks them, and forgets
outputs.

    texts of outputs ── build_segment ──> file ── Segment(path) ──> forget, correct_hubs, check
                                          file ┐
                                          file ┴─ merge_segments ──> one file without what was forgotten

The native functions raise the project's errors: SegmentCorruptError and StoreForeignError for a file that is
not a whole segment of this version, StoreFullError and StoreError for disk errors, SegmentCancelledError.
``reinstall_sigbus_handler`` is to be called periodically: it installs the handler that marks segments with
unreadable pages corrupt in front of handlers that were installed after it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from suffixsvc.core import _ext
from suffixsvc.core._ext import Segment, SegmentJob, reinstall_sigbus_handler
from suffixsvc.errors import InvalidInputError
from suffixsvc.runtime.low_priority import low_priority
from suffixsvc.types import OutputId, TokenArray
from suffixsvc.values import as_token_array

__all__ = [
    "SEGMENT_HEAD",
    "TEMPORARY_SUFFIX",
    "Segment",
    "SegmentJob",
    "SegmentText",
    "build_segment",
    "merge_segments",
    "reinstall_sigbus_handler",
]

#: suffix of the names of unfinished segments, which may be removed
TEMPORARY_SUFFIX: Final[str] = _ext.SEGMENT_TEMPORARY
#: the first bytes of a segment of this version (docs/format.md): magic and version
SEGMENT_HEAD: Final[bytes] = _ext.SEGMENT_HEAD


@dataclass(frozen=True, slots=True)
class SegmentText:
    """One text of an output, as ``suffixsvc.index.texts.texts_of`` returns them.

    Attributes:
        token_ids: int32[n], n > context.
        context: number of leading tokens that are context only (the end of the prompt): matched, never
            drafted. Only the last 64 of them matter.
        output_id: LSN of the output; an output may have several texts.
    """

    token_ids: TokenArray
    context: int
    output_id: OutputId


def build_segment(
    path: str | os.PathLike[str],
    texts: Iterable[SegmentText],
    *,
    job: SegmentJob | None = None,
    hub_min: int = 0,
) -> None:
    """Write a segment of these texts; the name appears when all of it is on disk, or not at all.

    Args:
        path: the file; an existing one is replaced.
        texts: in any order. Equal ones are stored once, with all their outputs.
        job: progress (``done``, 0..1) and cancellation, for other threads.
        hub_min: contexts seen at least this often get precomputed counts; 0: chosen by size.

    Raises:
        InvalidInputError, InvalidTokensError: nothing was written.
        StoreFullError, StoreError: disk errors; no file is left.
        SegmentCancelledError: the job was cancelled.
    """
    arrays, lengths, contexts, lsns = [], [], [], []
    for text in texts:
        arrays.append(as_token_array(text.token_ids))
        lengths.append(len(arrays[-1]))
        contexts.append(text.context)
        lsns.append(text.output_id)
    try:
        columns = (
            np.array(lengths, dtype=np.uint64),
            np.array(contexts, dtype=np.uint32),
            np.array(lsns, dtype=np.uint64),
        )
    except (OverflowError, ValueError, TypeError) as error:
        raise InvalidInputError(
            "context lengths and output ids must be unsigned ints", got=str(error)
        ) from None
    tokens = np.concatenate(arrays) if arrays else np.empty(0, np.int32)
    low_priority(_ext.build_segment, path, tokens, *columns, hub_min, job or SegmentJob())


def merge_segments(
    path: str | os.PathLike[str],
    sources: Sequence[Segment],
    *,
    job: SegmentJob | None = None,
    hub_min: int = 0,
) -> None:
    """Write one segment of others, without what they have forgotten. See :func:`build_segment`."""
    low_priority(_ext.merge_segments, path, sources, hub_min=hub_min, job=job or SegmentJob())

"""Output of a session: its runs of generated tokens as the record that is stored."""

from __future__ import annotations

import numpy as np

from suffixsvc import core
from suffixsvc.config import PROMPT_TAIL_TOKENS
from suffixsvc.index.identity import output_uuid
from suffixsvc.types import Labels, NewOutput

__all__ = ["output_of", "output_runs"]


def output_runs(native: core.Session) -> list[tuple[int, int]]:
    """First and last position, exclusive, of each non-empty run of output tokens."""
    return [(first, last) for first, last in native.output_runs() if last > first]


def output_of(
    native: core.Session, namespace: str, labels: Labels, *, incomplete: bool, session_id: str
) -> NewOutput | None:
    """The output of a session as it is stored; None where the session has no output tokens."""
    runs = output_runs(native)
    if not runs:
        return None
    first = runs[0][0]
    uuid = b""
    if session_id:
        uuid = output_uuid(session_id, namespace, native.text(0, len(native)), first, incomplete=incomplete)
    return NewOutput(
        namespace=namespace,
        token_ids=np.concatenate([native.text(a, b) for a, b in runs]),
        segment_lens=tuple(b - a for a, b in runs),
        prompt_tail=native.text(max(0, first - PROMPT_TAIL_TOKENS), first),
        labels=labels,
        incomplete=incomplete,
        uuid=uuid,
        session_id=session_id,
    )

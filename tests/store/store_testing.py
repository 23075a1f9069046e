"""What the tests of the store share: outputs to write, and how to compare what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from suffixsvc.types import NewOutput, StoredOutput

NS = "acme/qwen2.5-coder/sql-agent"


def make_output(
    tokens: Sequence[int] = (1, 2, 3),
    *,
    namespace: str = NS,
    segments: Sequence[int] | None = None,
    tail: Sequence[int] = (),
    labels: dict[str, str] | None = None,
    **more: Any,
) -> NewOutput:
    return NewOutput(
        namespace=namespace,
        token_ids=np.asarray(tokens, dtype=np.int32),
        segment_lens=tuple(segments) if segments is not None else (len(tokens),),
        prompt_tail=np.asarray(tail, dtype=np.int32),
        labels=labels or {},
        **more,
    )


def plain(output: NewOutput) -> dict[str, Any]:
    """An output as values that compare with ==."""
    return {
        "namespace": output.namespace,
        "token_ids": output.token_ids.tolist(),
        "segment_lens": tuple(n for n in output.segment_lens if n),
        "prompt_tail": output.prompt_tail.tolist(),
        "labels": dict(output.labels),
        "incomplete": output.incomplete,
        "ttl_seconds": output.ttl_seconds,
        "corpus": output.corpus,
    }


def plain_stored(stored: StoredOutput) -> tuple[int, float, dict[str, Any]]:
    return stored.output_id, stored.written_at, plain(stored.output)


class Clock:
    """Time that moves when the test says so."""

    def __init__(self, now: float = 1_700_000_000.25) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

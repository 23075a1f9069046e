"""Outputs of the texts in a hot index, by writer number: the core names the text that a draft was taken from
by such a number, which is not a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from suffixsvc.types import OutputId


class WriterIds:
    """The writer numbers of a namespace's hot outputs. Thread-safe; each call is short."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._id_of: dict[int, OutputId] = {}
        self._writer_of: dict[OutputId, int] = {}

    def __len__(self) -> int:
        return len(self._id_of)

    def bind(self, writer: int, output_id: OutputId) -> None:
        """Record the output of a text. An output that was loaded again has another text."""
        with self._lock:
            before = self._writer_of.pop(output_id, None)
            if before is not None:
                self._id_of.pop(before, None)
            self._id_of[writer] = output_id
            self._writer_of[output_id] = writer

    def unbind(self, output_ids: Iterable[OutputId]) -> None:
        """Remove outputs that are not hot any more. Unknown ids are ignored."""
        with self._lock:
            for output_id in output_ids:
                writer = self._writer_of.pop(output_id, None)
                if writer is not None:
                    del self._id_of[writer]

    def outputs_of(self, writers: Iterable[int]) -> list[OutputId]:
        """The outputs of these texts, in their order; those of live sessions have none."""
        with self._lock:
            return [self._id_of[writer] for writer in writers if writer in self._id_of]

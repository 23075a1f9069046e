"""Exports of n-grams: few at a time, counted into a temporary folder and read from there by their clients."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from suffixsvc.errors import LimitExceededError
from suffixsvc.lookup_records import RecordFile
from suffixsvc.service.messages import converters
from suffixsvc.service.messages.converters import shared_fields
from suffixsvc.store.files.folder import disk_error
from suffixsvc.v1 import suffix_cache_pb2 as pb

if TYPE_CHECKING:
    from suffixsvc.engine import ExportJob, Namespace

#: exports that are counted or read: each holds a thread, files and disk space while its client reads
MAX_EXPORTS: Final = 4


class Exports:
    """The exports of a service. Thread-safe."""

    def __init__(self) -> None:
        #: counting takes memory and a core: one export at a time
        self._counting = threading.Semaphore(1)
        self._exporting = threading.Semaphore(MAX_EXPORTS)
        with contextlib.suppress(FileNotFoundError):  # looked for by writing, which takes a descriptor
            tempfile.gettempdir()

    def export(
        self, namespace: Namespace, request: pb.ExportNgramsRequest, job: ExportJob | None
    ) -> Generator[pb.ExportNgramsReply, None, None]:
        """Count; yields a summary, then the files in pieces. See ``Handlers.export_ngrams``.

        Raises:
            InvalidInputError.
            LimitExceededError: another export is counting, or MAX_EXPORTS are being read.
            ServiceUnavailableError: ``job`` was cancelled.
            StoreError: the log or the temporary folder failed.
        """
        with contextlib.ExitStack() as held:
            held.enter_context(_acquired(self._exporting, "too many exports are being read", MAX_EXPORTS))
            with (
                _acquired(self._counting, "another export is counting", 1),
                _export_folder() as folder,
            ):
                wanted = [RecordFile(**shared_fields(pb.NgramFile, each)) for each in request.files]
                exported = namespace.export_ngrams(
                    wanted, folder, context_tokens=request.context_tokens, job=job
                )
                # The files are unlinked before clients read them, so that a slow client cannot leak them.
                files = [held.enter_context(each.path.open("rb")) for each in exported.files]
            yield from converters.export_to_proto(exported, files, namespace.tokenizer)


@contextlib.contextmanager
def _acquired(semaphore: threading.Semaphore, full: str, limit: int) -> Iterator[None]:
    """Hold a semaphore for the block. Raises LimitExceededError(``full``) if none is free."""
    if not semaphore.acquire(blocking=False):
        raise LimitExceededError(full, expected=f"{limit} at a time", remedy="Try again when one is done.")
    try:
        yield
    finally:
        semaphore.release()


@contextlib.contextmanager
def _export_folder() -> Iterator[Path]:
    """A temporary folder for the block. Raises StoreError for an OSError, also one of the block."""
    try:
        with tempfile.TemporaryDirectory(prefix="suffixsvc-export-") as folder:
            yield Path(folder)
    except OSError as error:
        raise disk_error(error, "the temporary folder", "writing an export to") from error

"""Export of lookup caches from a namespace: of a running service, or of a data folder that is not open."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from suffixsvc import SuffixCache
from suffixsvc.engine import ExportJob
from suffixsvc.engine.export import ExportedNgrams
from suffixsvc.errors import InvalidInputError, StoreError, unknown_namespace
from suffixsvc.lookup_records import RecordFile, TalliedFile
from suffixsvc.runtime.signal_guard import JoinedThreads
from suffixsvc_caches.atomic import require_new, write_error
from suffixsvc_caches.building.lookup_caches import LookupCaches, LookupFiles, LookupSpec
from suffixsvc_caches.counting.merging import Records
from suffixsvc_caches.manifest import TokenizerNote
from suffixsvc_client import SuffixClient


@dataclass(frozen=True, slots=True)
class ExportResult:
    """Result of an export: tokenizer fingerprint ("" = unknown), outputs and tokens counted, files."""

    tokenizer: str
    outputs: int
    tokens: int
    files: LookupFiles


def export_lookup(
    namespace: str,
    place: Path | str,
    static: LookupSpec | None = None,
    dynamic: LookupSpec | None = None,
    *,
    context_tokens: int = 0,
    force: bool = False,
) -> ExportResult:
    """Count the n-grams of a namespace's outputs and write lookup caches.

    Args:
        namespace: path of the namespace.
        place: a data folder, or the address of a service as str.
        static, dynamic: the caches to write.
        context_tokens: prompt tokens, from the end, in which n-grams may begin.
        force: replace existing files.

    Raises:
        InvalidInputError: a file exists, and not ``force``; or the namespace is empty.
        UnknownNamespaceError, StoreError, ServiceError: no partial file is left.
    """
    caches = LookupCaches(static, dynamic)
    for path in caches.paths:
        require_new(path, force=force)
    wanted = caches.wanted
    with _scratch() as folder:
        if isinstance(place, Path):
            tokenizer, done = _from_folder(place, namespace, wanted, context_tokens, folder)
        else:
            tokenizer, done = _from_service(place, namespace, wanted, context_tokens, folder)
        if not done.tokens:
            raise InvalidInputError(f"the namespace {namespace} must have outputs", got="no output")
        options = {
            "namespace": namespace,
            "context_tokens": context_tokens,
            "outputs": done.outputs,
            "tokens": done.tokens,
        }
        found = [Records(each, [file]) for each, file in zip(wanted, done.files, strict=True)]
        files = caches.write(found, force=force, tokenizer=TokenizerNote(tokenizer), options=options)
        return ExportResult(tokenizer, done.outputs, done.tokens, files)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Temporary folder for intermediate files, below TMPDIR. StoreError: it cannot be created."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="suffixsvc-export-")
    except OSError as error:
        raise _scratch_error(error, "the folder for temporary files") from None
    with folder as name:
        yield Path(name)


def _scratch_error(error: OSError, folder: object) -> StoreError:
    return write_error(error, f"cannot write to {folder}", remedy="Set TMPDIR to another folder.")


def _from_folder(
    data: Path, path: str, wanted: Sequence[RecordFile], context_tokens: int, folder: Path
) -> tuple[str, ExportedNgrams]:
    if not (data / "data.mdb").is_file():
        raise InvalidInputError("the data folder must exist and have a data.mdb", got=data)
    with SuffixCache(data, background=False) as cache:
        if not cache.has_namespace(path):
            raise unknown_namespace(path)
        namespace = cache.namespace(path)
        job = ExportJob()
        # In another thread, so that Ctrl-C in this one cancels the export.
        with JoinedThreads(1) as pool:
            try:
                export = pool.submit(
                    namespace.export_ngrams, wanted, folder, context_tokens=context_tokens, job=job
                )
                return namespace.tokenizer, export.result()
            except BaseException:
                job.cancel()
                raise


def _from_service(
    server: str, path: str, wanted: Sequence[RecordFile], context_tokens: int, folder: Path
) -> tuple[str, ExportedNgrams]:
    paths = [folder / f"{i}.records" for i in range(len(wanted))]
    try:
        with SuffixClient(server) as client, contextlib.ExitStack() as open_files:
            sinks = [open_files.enter_context(path.open("wb")) for path in paths]
            done = client.namespace(path).export_ngrams(wanted, sinks, context_tokens=context_tokens)
    except OSError as error:
        raise _scratch_error(error, folder) from None
    files = [TalliedFile(path, *astuple(file)) for path, file in zip(paths, done.files, strict=True)]
    return done.tokenizer, ExportedNgrams(done.outputs, done.tokens, files)

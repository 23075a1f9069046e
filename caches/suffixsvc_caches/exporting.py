"""Export of lookup caches from a namespace: of a running service, or of a data folder that is not open."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path

from suffixsvc import SuffixCache
from suffixsvc.engine import ExportJob, Namespace
from suffixsvc.engine.export import ExportedNgrams
from suffixsvc.errors import InvalidInputError, StoreError, unknown_namespace
from suffixsvc.lookup_records import RecordFile, TalliedFile
from suffixsvc_caches.atomic import require_new, write_error
from suffixsvc_caches.building import LookupCaches, LookupFiles, LookupSpec, Provenance
from suffixsvc_caches.counting import Records
from suffixsvc_caches.manifest import TokenizerNote
from suffixsvc_client import SuffixClient

__all__ = ["ExportResult", "ExportSource", "export_lookup"]


@dataclass(frozen=True, slots=True)
class ExportSource:
    """Location of a namespace: its path, and a data folder or the address of a service."""

    namespace: str
    data: Path | None = None
    server: str = ""


@dataclass(frozen=True, slots=True)
class ExportResult:
    """Result of an export: tokenizer fingerprint ("" = unknown), outputs and tokens counted, files."""

    tokenizer: str
    outputs: int
    tokens: int
    files: LookupFiles


def export_lookup(
    source: ExportSource,
    static: LookupSpec | None,
    dynamic: LookupSpec | None,
    *,
    context_tokens: int = 0,
    force: bool = False,
) -> ExportResult:
    """Count the n-grams of a namespace's outputs and write lookup caches.

    Args:
        source: the namespace.
        static, dynamic: the caches to write.
        context_tokens: prompt tokens, from the end, in which n-grams may begin.
        force: replace existing files.

    Raises:
        InvalidInputError: a file exists, and not ``force``; or the namespace is empty.
        UnknownNamespaceError, StoreError, ServiceError: no partial file is left.
    """
    caches = LookupCaches(static, dynamic)
    for each in (static, dynamic):
        if each is not None:
            require_new(each.path, force=force)
    with _scratch() as folder:
        if source.data is None:
            ngrams = _from_service(source, caches.wanted, context_tokens, folder)
        else:
            ngrams = _from_folder(source.data, source.namespace, caches.wanted, context_tokens, folder)
        tokenizer, outputs, tokens, found = ngrams
        if not tokens:
            raise InvalidInputError(f"the namespace {source.namespace} must have outputs", got="no output")
        options = {
            "namespace": source.namespace,
            "context_tokens": context_tokens,
            "outputs": outputs,
            "tokens": tokens,
        }
        provenance = Provenance(TokenizerNote(tokenizer), options=options)
        return ExportResult(tokenizer, outputs, tokens, caches.write(found, provenance, force=force))


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


#: tokenizer fingerprint, outputs, tokens, records
_Ngrams = tuple[str, int, int, Sequence[Records]]


def _from_folder(
    data: Path, path: str, wanted: Sequence[RecordFile], context_tokens: int, folder: Path
) -> _Ngrams:
    if not (data / "data.mdb").is_file():
        raise InvalidInputError("the data folder must exist and have a data.mdb", got=data)
    with SuffixCache(data, background=False) as cache:
        if not cache.has_namespace(path):
            raise unknown_namespace(path)
        namespace = cache.namespace(path)
        done = _export(namespace, wanted, folder, context_tokens)
        found = [Records(each, [file]) for each, file in zip(wanted, done.files, strict=True)]
        return namespace.tokenizer, done.outputs, done.tokens, found


def _export(
    namespace: Namespace, wanted: Sequence[RecordFile], folder: Path, context_tokens: int
) -> ExportedNgrams:
    """Export in another thread, so that Ctrl-C in this one cancels the export."""
    job = ExportJob()
    with ThreadPoolExecutor(1) as pool:
        try:
            export = pool.submit(
                namespace.export_ngrams, wanted, folder, context_tokens=context_tokens, job=job
            )
            return export.result()
        except BaseException:
            job.cancel()
            raise


def _from_service(
    source: ExportSource, wanted: Sequence[RecordFile], context_tokens: int, folder: Path
) -> _Ngrams:
    paths = [folder / f"{i}.records" for i in range(len(wanted))]
    try:
        with SuffixClient(source.server) as client, contextlib.ExitStack() as open_files:
            sinks = [open_files.enter_context(path.open("wb")) for path in paths]
            namespace = client.namespace(source.namespace)
            done = namespace.export_ngrams(wanted, sinks, context_tokens=context_tokens)
    except OSError as error:
        raise _scratch_error(error, folder) from None
    files = [TalliedFile(path, *astuple(file)) for path, file in zip(paths, done.files, strict=True)]
    found = [Records(each, [file]) for each, file in zip(wanted, files, strict=True)]
    return done.tokenizer, done.outputs, done.tokens, found

"""Lookup caches from a namespace: of a running service, or of a data folder that no process has open."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path

from suffixsvc_client import SuffixClient

from suffixsvc import SuffixCache
from suffixsvc.engine import ExportJob, Namespace
from suffixsvc.engine.export import ExportedNgrams
from suffixsvc.errors import InvalidInputError, StoreError, StoreFullError, unknown_namespace
from suffixsvc.lookup_records import RecordFile, TalliedFile
from suffixsvc_caches.atomic import FULL, require_new
from suffixsvc_caches.building import LookupCaches, LookupFiles, LookupSpec, Provenance
from suffixsvc_caches.counting import Records
from suffixsvc_caches.manifest import TokenizerNote

__all__ = ["ExportSource", "Exported", "export_lookup"]


@dataclass(frozen=True, slots=True)
class ExportSource:
    """Where a namespace is: a data folder, or the address of a service."""

    namespace: str
    data: Path | None = None
    server: str = ""


@dataclass(frozen=True, slots=True)
class Exported:
    """What was exported: the tokenizer's fingerprint ("" = unknown), outputs and tokens counted, files."""

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
) -> Exported:
    """Count what a namespace keeps, and write lookup caches.

    Raises:
        InvalidInputError: a file exists, and not ``force``; nothing to count. UnknownNamespaceError.
        StoreError, ServiceError. No file is left half written.
    """
    caches = LookupCaches(static, dynamic)
    for each in (static, dynamic):
        if each is not None:
            require_new(each.path, force=force)
    with _scratch() as folder:
        if source.data is None:
            done = _from_service(source, caches.wanted, context_tokens, folder)
        else:
            done = _from_folder(source.data, source.namespace, caches.wanted, context_tokens, folder)
        tokenizer, outputs, tokens, found = done
        if not tokens:
            raise InvalidInputError(
                f"the namespace {source.namespace} is empty", expected="outputs that are kept", got="none"
            )
        options = {
            "namespace": source.namespace,
            "context_tokens": context_tokens,
            "outputs": outputs,
            "tokens": tokens,
        }
        provenance = Provenance(TokenizerNote(tokenizer), options=options)
        return Exported(tokenizer, outputs, tokens, caches.write(found, provenance, force=force))


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for what is not finished, where the system keeps such (TMPDIR). StoreError."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="suffixsvc-export-")
    except OSError as error:
        raise _of_disk(error, Path("the folder for temporary files")) from None
    with folder as name:
        yield Path(name)


def _of_disk(error: OSError, folder: Path) -> StoreError:
    kind = StoreFullError if error.errno in FULL else StoreError
    return kind(f"cannot write to {folder}", got=error.strerror, remedy="TMPDIR names another folder.")


_Found = tuple[str, int, int, Sequence[Records]]


def _from_folder(
    data: Path, path: str, wanted: Sequence[RecordFile], context_tokens: int, folder: Path
) -> _Found:
    if not (data / "data.mdb").is_file():
        raise InvalidInputError("there is no data folder", expected="a folder with a data.mdb", got=data)
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
    """Export in another thread: Ctrl-C, which this one waits for as well, ends it."""
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
) -> _Found:
    paths = [folder / f"{i}.records" for i in range(len(wanted))]
    try:
        with SuffixClient(source.server) as client, contextlib.ExitStack() as open_files:
            sinks = [open_files.enter_context(path.open("wb")) for path in paths]
            namespace = client.namespace(source.namespace)
            done = namespace.export_ngrams(wanted, sinks, context_tokens=context_tokens)
    except OSError as error:
        raise _of_disk(error, folder) from None
    files = [TalliedFile(path, *astuple(file)) for path, file in zip(paths, done.files, strict=True)]
    found = [Records(each, [file]) for each, file in zip(wanted, files, strict=True)]
    return done.tokenizer, done.outputs, done.tokens, found

"""Loading of encoded calls into a namespace as a pinned corpus: in a data folder, or in a running service."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from suffixsvc import SuffixCache
from suffixsvc.config import PROMPT_TAIL_TOKENS, UUID_BYTES, Limits
from suffixsvc.errors import InvalidInputError, UnknownNamespaceError
from suffixsvc.types import NewOutput
from suffixsvc_caches.building.spec import CorpusTarget
from suffixsvc_caches.counting import Journal, SpooledCall
from suffixsvc_client import ClientNamespace, SuffixClient

__all__ = ["load_corpus", "require_loadable"]

#: limits of a batch, which is one transaction or one RPC
_OUTPUTS: Final = 512
_TOKENS: Final = 1 << 19
#: limit of one output
_MOST_TOKENS: Final = Limits().max_output_tokens

#: progress callback: outputs loaded so far
OnLoaded = Callable[[int], None]


def load_corpus(
    target: CorpusTarget,
    calls: Iterable[SpooledCall],
    fingerprint: str,
    journal: Journal,
    on_loaded: OnLoaded | None = None,
) -> int:
    """Load calls in their order; return the number of outputs of the corpus.

    An interrupted load resumes where it stopped. In a data folder that requires that no other writer used the
    namespace in between; a service stores a batch that is sent twice once.

    Args:
        target: the namespace.
        calls: the encoded calls.
        fingerprint: of their tokenizer; "" = unknown.
        journal: records the progress of the load.
        on_loaded: see :data:`OnLoaded`.

    Raises:
        InvalidInputError: the namespace is not empty, and not ``add``.
        TokenizerMismatchError: ids of another tokenizer. StoreError, ServiceError.
    """
    outputs = _outputs(target.namespace, calls)
    if target.data is not None:
        return _into_folder(target, target.data, outputs, fingerprint, journal, on_loaded)
    return _into_service(target, outputs, fingerprint, journal, on_loaded)


def _into_folder(
    target: CorpusTarget,
    data: Path,
    outputs: Iterator[NewOutput],
    fingerprint: str,
    journal: Journal,
    on_loaded: OnLoaded | None,
) -> int:
    with SuffixCache(data) as cache:
        namespace = cache.namespace(target.namespace, tokenizer=fingerprint or None)
        held = namespace.stats().outputs
        if journal.base is None:
            _require_empty(target, held)
            journal.begin_load(held)
        loaded = held - (journal.base or 0)
        if loaded < 0:
            raise InvalidInputError(
                f"the namespace {target.namespace} in {target.place} lost outputs during the load",
                expected=f"{journal.base} or more",
                got=f"{held} outputs",
                remedy="Delete the work folder and build again.",
            )
        _skip(outputs, loaded)
        for batch in _batches(outputs):
            namespace.add_outputs(batch)
            loaded += len(batch)
            if on_loaded is not None:
                on_loaded(loaded)
        cache.compact(target.namespace)
    return loaded


def _into_service(
    target: CorpusTarget,
    outputs: Iterator[NewOutput],
    fingerprint: str,
    journal: Journal,
    on_loaded: OnLoaded | None,
) -> int:
    with SuffixClient(target.server) as client:
        namespace = client.namespace(target.namespace, fingerprint or None)
        if journal.base is None:
            held = _output_count(namespace)
            _require_empty(target, held)
            journal.begin_load(held)
        loaded = journal.loaded
        if journal.load_id:
            outputs = _with_uuids(outputs, journal.load_id)
        _skip(outputs, loaded)
        for batch in _batches(outputs):
            namespace.add_outputs(batch)
            loaded += len(batch)
            journal.add_loaded(loaded)
            if on_loaded is not None:
                on_loaded(loaded)
    return loaded


def _output_count(namespace: ClientNamespace) -> int:
    try:
        return namespace.stats().outputs
    except UnknownNamespaceError:
        return 0


def require_loadable(target: CorpusTarget, fingerprint: str) -> None:
    """Check before a build that its corpus can be loaded; errors as :func:`load_corpus`."""
    if target.data is None:
        with SuffixClient(target.server) as client:
            _require_empty(target, _output_count(client.namespace(target.namespace, fingerprint or None)))
    elif target.data.exists():
        with SuffixCache(target.data, background=False) as cache:
            known = {record.path for record in cache.namespaces()}
            if target.namespace in known:
                namespace = cache.namespace(target.namespace, tokenizer=fingerprint or None)
                _require_empty(target, namespace.stats().outputs)


def _require_empty(target: CorpusTarget, held: int) -> None:
    if held and not target.add:
        raise InvalidInputError(
            f"the namespace {target.namespace} in {target.place} must be empty",
            got=f"{held} outputs",
            remedy="Name another namespace, or add to it with --add.",
        )


def _skip(outputs: Iterator[NewOutput], number: int) -> None:
    for _ in range(number):
        next(outputs, None)


def _outputs(namespace: str, calls: Iterable[SpooledCall]) -> Iterator[NewOutput]:
    for call in calls:
        tail = call.prompt_tail
        # A longer text becomes several outputs, each with the end of the previous one as its prompt tail.
        for first in range(0, len(call.token_ids), _MOST_TOKENS):
            part = call.token_ids[first : first + _MOST_TOKENS]
            yield NewOutput(namespace, part, (len(part),), tail, call.labels, corpus=True)
            tail = part[-PROMPT_TAIL_TOKENS:]


def _with_uuids(outputs: Iterator[NewOutput], load_id: bytes) -> Iterator[NewOutput]:
    """Add uuids that are the same when the load is resumed."""
    for place, output in enumerate(outputs):
        uuid = hashlib.blake2b(load_id + place.to_bytes(8, "big"), digest_size=UUID_BYTES).digest()
        yield replace(output, uuid=uuid)


def _batches(outputs: Iterator[NewOutput]) -> Iterator[list[NewOutput]]:
    batch: list[NewOutput] = []
    tokens = 0
    for output in outputs:
        batch.append(output)
        tokens += len(output.token_ids)
        if len(batch) >= _OUTPUTS or tokens >= _TOKENS:
            yield batch
            batch, tokens = [], 0
    if batch:
        yield batch

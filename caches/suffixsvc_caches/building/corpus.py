"""Encoded calls into a namespace, as a pinned corpus: of a data folder, or of a running service."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from suffixsvc_client import ClientNamespace, SuffixClient

from suffixsvc import SuffixCache
from suffixsvc.config import PROMPT_TAIL_TOKENS, UUID_BYTES, Limits
from suffixsvc.errors import InvalidInputError, UnknownNamespaceError
from suffixsvc.types import NewOutput
from suffixsvc_caches.building.spec import CorpusTarget
from suffixsvc_caches.counting import Journal, SpooledCall

__all__ = ["load_corpus", "require_room"]

#: written in one transaction, or sent in one call: whichever comes first
_OUTPUTS: Final = 512
_TOKENS: Final = 1 << 19
#: of one output
_MOST_TOKENS: Final = Limits().max_output_tokens

#: told how many outputs are loaded
OnLoaded = Callable[[int], None]


def load_corpus(
    target: CorpusTarget,
    calls: Iterable[SpooledCall],
    fingerprint: str,
    journal: Journal,
    on_loaded: OnLoaded | None = None,
) -> int:
    """Load the calls, in their order; returns how many outputs the corpus has.

    A load that was interrupted goes on where it stopped: into a data folder exactly (nothing else may have
    written to it in between), into a service as well: a batch that is sent again is kept once.

    Raises:
        InvalidInputError: the namespace holds outputs already, and not ``add``.
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
                f"the namespace {target.namespace} in {target.place} lost outputs while it was loaded",
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
            held = _held(namespace)
            _require_empty(target, held)
            journal.begin_load(held)
        loaded = journal.loaded
        if journal.load_id:
            outputs = _identified(outputs, journal.load_id)
        _skip(outputs, loaded)
        for batch in _batches(outputs):
            namespace.add_outputs(batch)
            loaded += len(batch)
            journal.add_loaded(loaded)
            if on_loaded is not None:
                on_loaded(loaded)
    return loaded


def _held(namespace: ClientNamespace) -> int:
    try:
        return namespace.stats().outputs
    except UnknownNamespaceError:
        return 0


def require_room(target: CorpusTarget, fingerprint: str) -> None:
    """Look before the work begins whether the corpus can be loaded; errors as :func:`load_corpus`."""
    if target.data is None:
        with SuffixClient(target.server) as client:
            _require_empty(target, _held(client.namespace(target.namespace, fingerprint or None)))
    elif target.data.exists():
        with SuffixCache(target.data, background=False) as cache:
            known = {record.path for record in cache.namespaces()}
            if target.namespace in known:
                namespace = cache.namespace(target.namespace, tokenizer=fingerprint or None)
                _require_empty(target, namespace.stats().outputs)


def _require_empty(target: CorpusTarget, held: int) -> None:
    if held and not target.add:
        raise InvalidInputError(
            f"the namespace {target.namespace} in {target.place} holds outputs already",
            expected="an empty namespace",
            got=f"{held} outputs",
            remedy="Name another namespace, or add to it with --add.",
        )


def _skip(outputs: Iterator[NewOutput], number: int) -> None:
    for _ in range(number):
        next(outputs, None)


def _outputs(namespace: str, calls: Iterable[SpooledCall]) -> Iterator[NewOutput]:
    for call in calls:
        tail = call.prompt_tail
        # A text may be longer than an output: its parts follow each other, each behind the end of the last.
        for first in range(0, len(call.token_ids), _MOST_TOKENS):
            part = call.token_ids[first : first + _MOST_TOKENS]
            yield NewOutput(namespace, part, (len(part),), tail, call.labels, corpus=True)
            tail = part[-PROMPT_TAIL_TOKENS:]


def _identified(outputs: Iterator[NewOutput], load_id: bytes) -> Iterator[NewOutput]:
    """Each with a uuid that is the same whenever this load is gone on with."""
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

"""Loading of encoded calls into a namespace as a pinned corpus: in a data folder, or in a running service."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from more_itertools import constrained_batches

from suffixsvc import SuffixCache
from suffixsvc.config import PROMPT_TAIL_TOKENS, UUID_BYTES, Limits
from suffixsvc.engine import Namespace
from suffixsvc.errors import InvalidInputError, UnknownNamespaceError
from suffixsvc.types import NewOutput
from suffixsvc_caches.building.spec import CorpusTarget
from suffixsvc_caches.counting.journal import Journal
from suffixsvc_caches.counting.plan import ignore
from suffixsvc_caches.counting.spool import SpooledCall
from suffixsvc_client import ClientNamespace, SuffixClient

#: limits of a batch
BATCH_OUTPUTS: Final = 512
BATCH_TOKENS: Final = 1 << 19
#: limit of one output
MOST_TOKENS: Final = Limits().max_output_tokens

#: progress callback: outputs loaded so far
OnLoaded = Callable[[int], None]


def load_corpus(
    target: CorpusTarget,
    calls: Iterable[SpooledCall],
    fingerprint: str,
    journal: Journal,
    on_loaded: OnLoaded = ignore,
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
    with _open(target, fingerprint) as namespace:
        held = _held(namespace)
        if journal.base is None:
            _require_empty(target, held)
            journal.begin_load(held)
        if target.data is None:
            loaded = journal.loaded
            if journal.load_id:
                outputs = _with_uuids(outputs, journal.load_id)
        else:
            loaded = held - (journal.base or 0)
            if loaded < 0:
                raise InvalidInputError(
                    f"the namespace {target.namespace} in {target.place} lost outputs during the load",
                    expected=f"{journal.base} or more",
                    got=f"{held} outputs",
                    remedy="Delete the work folder and build again.",
                )
        for batch in output_batches(islice(outputs, loaded, None)):
            namespace.add_outputs(batch)
            loaded += len(batch)
            if target.data is None:
                journal.add_loaded(loaded)
            on_loaded(loaded)
    return loaded


def require_loadable(target: CorpusTarget, fingerprint: str) -> None:
    """Check before a build that its corpus can be loaded; errors as :func:`load_corpus`."""
    if target.data is None:
        with _open(target, fingerprint) as service:
            _require_empty(target, _held(service))
    elif target.data.exists():
        with SuffixCache(target.data, background=False) as cache:
            if cache.has_namespace(target.namespace):
                _require_empty(
                    target, _held(cache.namespace(target.namespace, tokenizer=fingerprint or None))
                )


@contextlib.contextmanager
def _open(target: CorpusTarget, fingerprint: str) -> Iterator[Namespace | ClientNamespace]:
    if target.data is None:
        with SuffixClient(target.server) as client:
            yield client.namespace(target.namespace, fingerprint or None)
    else:
        with SuffixCache(target.data) as cache:
            yield cache.namespace(target.namespace, tokenizer=fingerprint or None)
            cache.compact(target.namespace)


def _held(namespace: Namespace | ClientNamespace) -> int:
    """Number of outputs of a namespace."""
    try:
        return namespace.stats().outputs
    except UnknownNamespaceError:
        return 0


def _require_empty(target: CorpusTarget, held: int) -> None:
    if held and not target.add:
        raise InvalidInputError(
            f"the namespace {target.namespace} in {target.place} must be empty",
            got=f"{held} outputs",
            remedy="Name another namespace, or add to it with --add.",
        )


def _outputs(namespace: str, calls: Iterable[SpooledCall]) -> Iterator[NewOutput]:
    for call in calls:
        tail = call.prompt_tail
        # A longer text becomes several outputs, each with the end of the previous one as its prompt tail.
        for first in range(0, len(call.token_ids), MOST_TOKENS):
            part = call.token_ids[first : first + MOST_TOKENS]
            yield NewOutput(namespace, part, (len(part),), tail, call.labels, corpus=True)
            tail = part[-PROMPT_TAIL_TOKENS:]


def _with_uuids(outputs: Iterator[NewOutput], load_id: bytes) -> Iterator[NewOutput]:
    """Add uuids that are the same when the load is resumed."""
    for place, output in enumerate(outputs):
        uuid = hashlib.blake2b(load_id + place.to_bytes(8, "big"), digest_size=UUID_BYTES).digest()
        yield replace(output, uuid=uuid)


def output_batches(outputs: Iterable[NewOutput]) -> Iterator[tuple[NewOutput, ...]]:
    """Outputs in batches, each for one transaction or one RPC."""
    return constrained_batches(
        outputs, BATCH_TOKENS, BATCH_OUTPUTS, lambda output: len(output.token_ids), strict=False
    )

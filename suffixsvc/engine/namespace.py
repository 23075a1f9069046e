"""A namespace as callers see it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from suffixsvc.config import PROMPT_TAIL_TOKENS, validate_labels, validate_reads
from suffixsvc.engine.export import ExportedNgrams, ExportJob, export_ngrams
from suffixsvc.engine.ngrams import count_ngrams
from suffixsvc.errors import unknown_namespace
from suffixsvc.index import NamespaceIndex, NamespaceStats, Session
from suffixsvc.lookup_records import RecordFile
from suffixsvc.policies import Policy
from suffixsvc.types import Labels, NewOutput, OutputId, TokenArray, TokenIds
from suffixsvc.values import as_outputs, as_token_array

if TYPE_CHECKING:
    from suffixsvc.engine.cache import SuffixCache

__all__ = ["Namespace"]


#: what the names of notes begin with in the store, beside the engine's own
_NOTE: Final = "note:"
#: ids are below it
MAX_OUTPUT_ID: Final = 2**63 - 1


class Namespace:
    """Outputs that may be drafted from together: one model's tokens, one circle of readers.

    After the namespace was deleted, what reads or changes outputs and notes raises UnknownNamespaceError,
    also where there is another namespace of its path.
    """

    def __init__(self, cache: SuffixCache, index: NamespaceIndex) -> None:
        self._cache = cache
        self._index = index

    @property
    def path(self) -> str:
        """Segments joined by "/"."""
        return self._index.path

    @property
    def tokenizer(self) -> str:
        """Fingerprint of the tokenizer, empty while none was given."""
        return self._index.tokenizer

    def open_session(
        self,
        prompt_token_ids: TokenIds,
        output_token_ids: TokenIds | None = None,
        labels: Labels | None = None,
        reads: Sequence[str] | None = None,
    ) -> Session:
        """Begin a generation.

        Args:
            prompt_token_ids: int32[n] or a sequence of ints.
            output_token_ids: what the model already wrote; resumes a generation without turning its
                output into prompt.
            labels: kept with the output, e.g. {"agent": .., "session": .., "principal": ..}.
            reads: paths of further namespaces to draft from; what is written goes to this one only.

        Raises:
            InvalidTokensError, InvalidLabelsError, UnknownNamespaceError (in ``reads``, or this namespace was
            deleted), TokenizerMismatchError (a namespace in ``reads`` has another tokenizer),
            LimitExceededError.
        """
        return self._cache._open_session(
            self._index,
            as_token_array(prompt_token_ids, "prompt_token_ids"),
            as_token_array([] if output_token_ids is None else output_token_ids, "output_token_ids"),
            validate_labels(labels),
            validate_reads(reads),
        )

    def add_output(
        self,
        token_ids: TokenIds,
        prompt_token_ids: TokenIds | None = None,
        labels: Labels | None = None,
        ttl_seconds: int = 0,
    ) -> OutputId:
        """Remember one finished output; returns once it is durable. See :meth:`add_outputs`."""
        tokens = as_token_array(token_ids)
        prompt = as_token_array([] if prompt_token_ids is None else prompt_token_ids, "prompt_token_ids")
        output = NewOutput(
            namespace=self.path,
            token_ids=tokens,
            segment_lens=(len(tokens),),
            prompt_tail=prompt[-PROMPT_TAIL_TOKENS:],
            labels=validate_labels(labels),
            ttl_seconds=ttl_seconds,
        )
        return self.add_outputs([output])[0]

    def add_outputs(self, outputs: Sequence[NewOutput]) -> list[OutputId]:
        """Remember finished outputs of this namespace, all or none; returns once they are durable.

        Args:
            outputs: each a ``suffixsvc.NewOutput`` (docs/protocol.md has an example).

        Raises:
            InvalidInputError: an element is no NewOutput, or a field of it is wrong.
            InvalidTokensError: an output without tokens.
            LimitExceededError: one is too long, or the namespace's limit has no room for them.
            StoreError: nothing was kept.
        """
        return self._cache._add_outputs(self._index, as_outputs(outputs))

    def forget(self, output_id: OutputId) -> None:
        """Delete one output from log and index. UnknownOutputError if it is not there."""
        self._require_there()
        self._cache._outputs.forget(self.path, output_id)

    def clear(self) -> int:
        """Delete every output that is here now from log and index; how many those were."""
        self._require_there()
        if not self._index.stored:
            return 0
        ids = self._cache._store.output_ids(self.path, 0, MAX_OUTPUT_ID)
        return self._cache._outputs.forget_many(self.path, ids)

    def note(self, name: str) -> bytes | None:
        """What :meth:`put_note` kept under a name, or None."""
        self._require_there()
        if not self._index.stored:
            return None
        return self._cache._store.get_state(self.path, _NOTE + name)

    def put_note(self, name: str, value: bytes) -> None:
        """Keep a few bytes with this namespace, for whoever fills it. Durable when it returns."""
        self._cache._catalog.store(self._index)
        self._cache._store.put_state(self.path, _NOTE + name, value)

    def ngrams(self, n: int) -> tuple[TokenArray, npt.NDArray[np.uint64]]:
        """All n-grams: int32[m, n] and uint64[m] counts. See ``NamespaceIndex.ngrams``.

        Those of sealed outputs are counted from the log, some microseconds a token.
        """
        self._require_there()
        return count_ngrams(self._index, self._cache._store, n)

    def export_ngrams(
        self,
        wanted: Sequence[RecordFile],
        folder: Path,
        *,
        context_tokens: int = 0,
        job: ExportJob | None = None,
    ) -> ExportedNgrams:
        """Write files of n-grams, counted from what is kept here (not from live sessions), into a folder.

        Args:
            wanted: which n-grams, a file each.
            context_tokens: of each prompt's kept end, at most 64, that n-grams may begin in.
            job: ends it, from another thread.

        Raises:
            InvalidInputError: no such n-grams. StoreError: the log, or the disk of the folder.
            ServiceUnavailableError: it was cancelled.
        """
        self._require_there()
        outputs = self._cache._store.scan(self.path) if self._index.stored else iter(())
        return export_ngrams(outputs, wanted, folder, context_tokens=context_tokens, job=job)

    @property
    def policy(self) -> Policy:
        """What holds here: of every setting the one nearest to this path."""
        return self._index.quota.policy

    def learned_weights(self) -> bytes:
        """What drafting has learned here and other namespaces can start from: counters and weights, no text,
        nothing that depends on the tokenizer. For ``SuffixCache(starting_weights=...)``."""
        return self._index.learned_weights()

    def stats(self) -> NamespaceStats:
        """What is held here (outputs, tokens, bytes of the index) and what came of the drafts since the
        cache was opened."""
        return self._index.stats()

    def _require_there(self) -> None:
        """The store knows namespaces by path, which may be another one's already."""
        if self._index.deleted:
            raise unknown_namespace(self.path)

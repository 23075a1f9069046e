"""Handle of a namespace: the public operations on its outputs, sessions and notes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from suffixsvc.config import PROMPT_TAIL_TOKENS, validate_labels, validate_principal, validate_reads
from suffixsvc.core import pack_weights
from suffixsvc.engine.export import ExportedNgrams, ExportJob, export_ngrams
from suffixsvc.engine.ngrams import count_ngrams
from suffixsvc.engine.parts import EngineParts
from suffixsvc.errors import unknown_namespace
from suffixsvc.index import NamespaceIndex, NamespaceStats, Session
from suffixsvc.index.hot_index import SeesAll, sees_everything
from suffixsvc.lookup_records import RecordFile
from suffixsvc.policies import Policy
from suffixsvc.selection import Selection
from suffixsvc.store.records.validation import check_session_id
from suffixsvc.types import Deletion, Labels, NewOutput, OutputId, TokenArray, TokenIds
from suffixsvc.values import as_outputs, as_token_array

#: prefix of the names of notes among the states in the store
_NOTE: Final = "note:"


class Namespace:
    """Outputs that are drafted from together: tokens of one tokenizer.

    After the namespace was deleted, calls that read or change outputs or notes raise UnknownNamespaceError,
    also if a later namespace of its path exists.

    Args:
        parts: of the cache.
        index: index of the namespace.
        tokenizer: bound with the first session or outputs that are accepted, unless it is empty.
    """

    def __init__(self, parts: EngineParts, index: NamespaceIndex, tokenizer: str = "") -> None:
        self._parts = parts
        self._index = index
        self._tokenizer = tokenizer

    @property
    def path(self) -> str:
        """Components joined by "/"."""
        return self._index.path

    @property
    def tokenizer(self) -> str:
        """Fingerprint of the tokenizer; empty if none was given and none is bound."""
        return self._index.tokenizer or self._tokenizer

    def open_session(
        self,
        prompt_token_ids: TokenIds,
        output_token_ids: TokenIds | None = None,
        labels: Labels | None = None,
        reads: Sequence[str] | None = None,
        *,
        private: bool = False,
        principal: str = "",
        session_id: str = "",
        sees_all: SeesAll = sees_everything,
    ) -> Session:
        """Begin a generation.

        Args:
            prompt_token_ids: int32[n] or a sequence of ints.
            output_token_ids: what the model has already written; resumes a generation without turning its
                output into prompt.
            labels: stored with the output, e.g. {"agent": .., "task": ..}.
            reads: paths of further namespaces to draft from; output is written to this one only.
            private: no other session drafts from what this one writes, nothing is learned from it, and
                closing it stores nothing. So is every session of a namespace whose policy is ``no_store``.
            principal: who writes, stored with the output; "": the operator.
            session_id: stored with the output, at most 200 bytes; "": none.
            sees_all: whether who reads the drafts has a full grant on the namespace at a path. Without it, a
                namespace whose policy has ``min_principals`` is read through its published runs only. Asked
                again when policies are set.

        Raises:
            InvalidTokensError, InvalidLabelsError, InvalidInputError (``principal``, ``session_id``),
            UnknownNamespaceError (in ``reads``, or this namespace was deleted), TokenizerMismatchError (a
            namespace in ``reads`` has another tokenizer), LimitExceededError.
        """
        return self._parts.sessions.open(
            self._index,
            as_token_array(prompt_token_ids, "prompt_token_ids"),
            as_token_array([] if output_token_ids is None else output_token_ids, "output_token_ids"),
            validate_labels(labels),
            validate_reads(reads),
            self._tokenizer,
            private=private,
            principal=validate_principal(principal),
            session_id=check_session_id(session_id),
            sees_all=sees_all,
        )

    def add_output(
        self,
        token_ids: TokenIds,
        prompt_token_ids: TokenIds | None = None,
        labels: Labels | None = None,
        ttl_seconds: int = 0,
        principal: str = "",
    ) -> OutputId:
        """Store one finished output; returns its id once it is durable.

        Args:
            token_ids: int32[n], what the model wrote.
            prompt_token_ids: tokens before the output, of which the last 64 are stored as context.
            labels: stored with the output.
            ttl_seconds: time to live; 0 = no expiry.
            principal: who wrote it; "": the operator.

        Raises:
            As :meth:`add_outputs`.
        """
        tokens = as_token_array(token_ids)
        prompt = as_token_array([] if prompt_token_ids is None else prompt_token_ids, "prompt_token_ids")
        output = NewOutput(
            namespace=self.path,
            token_ids=tokens,
            segment_lens=(len(tokens),),
            prompt_tail=prompt[-PROMPT_TAIL_TOKENS:],
            labels=validate_labels(labels),
            ttl_seconds=ttl_seconds,
            principal=principal,
        )
        return self.add_outputs([output])[0]

    def add_outputs(self, outputs: Sequence[NewOutput]) -> list[OutputId]:
        """Store finished outputs of this namespace, all or none; returns their ids once they are durable.

        Args:
            outputs: each a ``suffixsvc.NewOutput`` (docs/protocol.md has an example).

        Raises:
            InvalidInputError: an element is not a NewOutput, or a field of it is invalid.
            InvalidTokensError: an output has no tokens.
            LimitExceededError: an output is too long, or they do not fit in the namespace's limit.
            StoreError: nothing was stored.
        """
        checked = as_outputs(outputs)
        self._parts.sessions.require_writable(self.path)
        if self._parts.maintenance is not None:
            self._parts.maintenance.apply_backpressure(self._index)
        return self._parts.outputs.add(self._index, checked, self._tokenizer)

    def delete(
        self,
        *,
        output_ids: Sequence[OutputId] | None = None,
        session_id: str = "",
        labels: Labels | None = None,
        principal: str | None = None,
        older_than_seconds: float | None = None,
        superseded: bool = False,
    ) -> Deletion:
        """Delete what meets every given criterion; without one, every output and the text of live sessions.

        See ``SuffixCache.delete``; the criteria are those of :class:`suffixsvc.Selection`. Ids of outputs
        that do not exist are ignored.

        Raises:
            InvalidInputError: a criterion is malformed.
            UnknownNamespaceError: this namespace was deleted.
            StoreError: a part may be deleted; repeat the call.
        """
        self._require_existing()
        selection = Selection(
            self.path,
            output_ids,
            session_id,
            labels or {},
            principal,
            older_than_seconds,
        )
        return self._parts.deleter.delete(selection, superseded=superseded)

    def note(self, name: str) -> bytes | None:
        """The value that :meth:`put_note` stored under a name, or None."""
        self._require_existing()
        if not self._index.stored:
            return None
        return self._parts.store.get_state(self.path, _NOTE + name)

    def put_note(self, name: str, value: bytes) -> None:
        """Store a few bytes with this namespace, for the programs that fill it. Durable when it returns."""
        self._parts.catalog.store(self._index)
        self._parts.store.put_state(self.path, _NOTE + name, value)

    def ngrams(self, n: int) -> tuple[TokenArray, npt.NDArray[np.uint64]]:
        """All n-grams: int32[m, n] and uint64[m] counts. See ``NamespaceIndex.ngrams``.

        Those of sealed outputs are counted from the log, at some microseconds per token.
        """
        self._require_existing()
        return count_ngrams(self._index, self._parts.store, n)

    def export_ngrams(
        self,
        wanted: Sequence[RecordFile],
        folder: Path,
        *,
        context_tokens: int = 0,
        job: ExportJob | None = None,
    ) -> ExportedNgrams:
        """Write files of n-grams, counted from the stored outputs without live sessions, into a folder.

        Args:
            wanted: the n-grams of each file.
            folder: existing folder of the files.
            context_tokens: tokens of each stored prompt tail, at most 64, in which n-grams may begin.
            job: cancels the export from another thread.

        Raises:
            InvalidInputError: an argument is invalid.
            StoreError: the log or the folder failed.
            ServiceUnavailableError: the export was cancelled.
        """
        self._require_existing()
        outputs = self._parts.store.scan(self.path) if self._index.stored else iter(())
        return export_ngrams(outputs, wanted, folder, context_tokens=context_tokens, job=job)

    @property
    def policy(self) -> Policy:
        """The effective policy: of every setting the one nearest to this path."""
        return self._index.quota.policy

    def restricts(self, sees_all: SeesAll) -> bool:
        """Whether a reader (:meth:`open_session`) drafts from the published runs only."""
        return self._index.restricts(sees_all)

    def learned_weights(self) -> bytes:
        """The learned counters and weights, as initial weights of other namespaces.

        They contain no text and do not depend on the tokenizer. For ``SuffixCache(starting_weights=...)``.
        """
        return pack_weights(self._index.learner)

    def stats(self) -> NamespaceStats:
        """Contents (outputs, tokens, bytes) and draft counters since the cache was opened."""
        self._parts.quotas.evictor.count(self._index)
        return self._index.stats()

    def _require_existing(self) -> None:
        """The store identifies namespaces by path, which may belong to a later namespace."""
        if self._index.deleted:
            raise unknown_namespace(self.path)

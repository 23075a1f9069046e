"""A namespace of a follower: sessions draft from its copy, everything else is asked of the service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

from suffixsvc.config import validate_labels, validate_reads
from suffixsvc.errors import SuffixError
from suffixsvc.lookup_records import RecordFile
from suffixsvc.types import Deletion, Labels, NewOutput, OutputId, TokenIds
from suffixsvc.values import as_token_array
from suffixsvc_client import ClientNamespace, ClientSession, ExportSummary, ServiceStats
from suffixsvc_follower.session import FollowerSession

if TYPE_CHECKING:
    from suffixsvc_follower.follower import Follower


class FollowerNamespace:
    """One namespace of a service, drafted from in this process.

    Args:
        follower: that follows it.
        remote: the namespace at the service.
        tokenizer: its fingerprint; "" = not checked.
    """

    def __init__(self, follower: Follower, remote: ClientNamespace, tokenizer: str) -> None:
        self._follower = follower
        self._remote = remote
        self._tokenizer = tokenizer

    @property
    def path(self) -> str:
        """Components joined by "/"."""
        return self._remote.path

    @property
    def refusal(self) -> SuffixError | None:
        """Why the service does not let this process follow the namespace; None if it does, has not answered,
        or was not asked: the first session or :meth:`wait` asks it."""
        return self._follower.refusal_of(self.path)

    def open_session(
        self,
        prompt_token_ids: TokenIds,
        output_token_ids: TokenIds | None = None,
        labels: Labels | None = None,
        reads: Sequence[str] | None = None,
        *,
        private: bool = False,
    ) -> FollowerSession | ClientSession:
        """Begin a generation.

        Its drafts are taken from this process's copies of the namespaces, which are followed from the first
        session on; until their contents are there, from the session's own text. Where following is not
        allowed, the service drafts.

        Args:
            prompt_token_ids: int32[n] or a sequence of ints.
            output_token_ids: tokens that the model has already written, in the same shape; they resume a
                generation without becoming prompt.
            labels: stored with the output.
            reads: paths of further namespaces to draft from; output is written to this one only.
            private: nothing of the session leaves this process, and no other session drafts from it; closing
                it stores nothing.

        Raises:
            InvalidTokensError, InvalidLabelsError, InvalidNamespaceError: nothing was sent.
            LimitExceededError, TokenizerMismatchError, UnknownNamespaceError (in ``reads``): the service
            refuses. ServiceUnavailableError: the follower is closed, or a private session would have to be
            drafted for by the service.
        """
        prompt = as_token_array(prompt_token_ids, "prompt_token_ids")
        output = as_token_array([] if output_token_ids is None else output_token_ids, "output_token_ids")
        return self._follower.open_session(
            self._remote,
            self._tokenizer,
            prompt,
            output,
            labels=validate_labels(labels),
            reads=validate_reads(reads),
            private=private,
        )

    def add_output(
        self,
        token_ids: TokenIds,
        prompt_token_ids: TokenIds | None = None,
        labels: Labels | None = None,
        ttl_seconds: int = 0,
    ) -> OutputId:
        """See ``ClientNamespace.add_output``."""
        return self._remote.add_output(token_ids, prompt_token_ids, labels, ttl_seconds)

    def add_outputs(self, outputs: Sequence[NewOutput]) -> list[OutputId]:
        """See ``ClientNamespace.add_outputs``."""
        return self._remote.add_outputs(outputs)

    def export_ngrams(
        self,
        wanted: Sequence[RecordFile],
        sinks: Sequence[IO[bytes]],
        *,
        context_tokens: int = 0,
        timeout_s: float = 3600.0,
    ) -> ExportSummary:
        """See ``ClientNamespace.export_ngrams``."""
        return self._remote.export_ngrams(wanted, sinks, context_tokens=context_tokens, timeout_s=timeout_s)

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
        """See ``ClientNamespace.delete``."""
        return self._remote.delete(
            output_ids=output_ids,
            session_id=session_id,
            labels=labels,
            principal=principal,
            older_than_seconds=older_than_seconds,
            superseded=superseded,
        )

    def stats(self) -> ServiceStats:
        """See ``ClientNamespace.stats``."""
        return self._remote.stats()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the contents of the namespace are in this process; whether they are."""
        return self._follower.wait(self.path, timeout_s, tokenizer=self._tokenizer)

    def live_text(self) -> dict[str, int]:
        """Live text of other processes that is in this one. See ``Follower.live_text``."""
        return self._follower.live_text(self.path)

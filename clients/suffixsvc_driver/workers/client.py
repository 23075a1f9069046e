"""The driver's side of a draft worker: describe it, check its vocabulary, ask it for drafts."""

from __future__ import annotations

import contextlib
import itertools
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import grpc
import numpy as np

from suffixsvc import wire
from suffixsvc.errors import AppendGap, ServiceUnavailableError, SuffixError, UnknownSessionError
from suffixsvc.types import Draft
from suffixsvc.v1 import draft_worker_pb2 as pb
from suffixsvc.v1 import draft_worker_pb2_grpc as rpc
from suffixsvc_driver.targets.slots import common_prefix
from suffixsvc_driver.vocabulary import Vocabulary, check_vocabulary
from suffixsvc_driver.workers.stream import DraftStream

__all__ = ["DraftWorkerClient", "WorkerDescription", "WorkerSession"]

_CONNECT_SECONDS: Final = 10.0
#: after a failure the worker is left alone for so long, doubling up to the second value
_BACKOFF_SECONDS: Final = (0.5, 30.0)
#: more missing tokens than this are sent ahead of the first question
_SENT_AHEAD: Final = 48


@dataclass(frozen=True, slots=True)
class WorkerDescription:
    """What a worker says about itself."""

    model: str
    context_size: int
    seconds_per_token: float  #: measured by the worker at its start
    parameters: int
    instance_id: str
    vocabulary: Vocabulary  #: without texts


class DraftWorkerClient:
    """A connection to one worker. Use it as a context manager; sessions go with it.

    Args:
        address: ``unix:PATH`` or ``HOST:PORT``.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.insecure_channel(
            address, options=[("grpc.max_reconnect_backoff_ms", 1000), ("grpc.enable_http_proxy", 0)]
        )
        self.stub: rpc.DraftWorkerStub = rpc.DraftWorkerStub(self._channel)

    def __enter__(self) -> DraftWorkerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connection. Idempotent."""
        self._channel.close()

    def describe(self, timeout_seconds: float = _CONNECT_SECONDS) -> WorkerDescription:
        """Ask the worker what it is. ServiceUnavailableError when nobody answers in time."""
        try:
            reply = self.stub.Describe(pb.DescribeRequest(), timeout=timeout_seconds, wait_for_ready=True)
        except grpc.RpcError as err:
            raise self._unreachable(err) from None
        vocabulary = Vocabulary(
            kind=reply.vocab_type,
            size=reply.vocab_size,
            bos_id=reply.bos_id,
            eos_id=reply.eos_id,
            add_bos=reply.add_bos,
            add_eos=reply.add_eos,
            fingerprint=reply.fingerprint,
        )
        return WorkerDescription(
            reply.model,
            reply.context_size,
            reply.seconds_per_token,
            reply.parameters,
            reply.instance_id,
            vocabulary,
        )

    def vocabulary(self, description: WorkerDescription) -> Vocabulary:
        """The worker's vocabulary with its texts; some megabytes."""
        known = description.vocabulary
        texts: list[bytes] = []
        try:
            for chunk in self.stub.GetVocab(
                pb.GetVocabRequest(fingerprint=known.fingerprint), timeout=_CONNECT_SECONDS
            ):
                texts.extend(chunk.texts)
        except grpc.RpcError as err:
            raise self._unreachable(err) from None
        return Vocabulary(
            known.kind,
            known.size,
            known.bos_id,
            known.eos_id,
            known.add_bos,
            known.add_eos,
            known.fingerprint,
            tuple(texts),
        )

    def check_vocabulary(self, target: Vocabulary) -> WorkerDescription:
        """Refuse a worker whose ids mean something else than the target's.

        Raises:
            VocabularyMismatchError: names the rule, and the first token that differs.
            ServiceUnavailableError: nobody answers.
        """
        description = self.describe()
        vocabulary = description.vocabulary
        if vocabulary.fingerprint != target.fingerprint:
            vocabulary = self.vocabulary(description)
        check_vocabulary(vocabulary, target)
        return description

    def _unreachable(self, err: grpc.RpcError) -> ServiceUnavailableError:
        code = err.code().name if isinstance(err, grpc.Call) else "no status"
        return ServiceUnavailableError(
            f"no draft worker answers at {self.address}",
            got=code,
            remedy="Start one: suffixsvc draft-worker --model X.gguf --listen ADDRESS",
        )


class WorkerSession:
    """One context on a worker: keeps it in step with a text and asks for drafts, each within a time.

    The worker holds a prefix of the text; only what it lacks is sent, and a long piece (a new prompt) is
    sent ahead without waiting. Anything that goes wrong - no answer in time, busy, restarted, gone - is an
    empty draft, and the text is caught up later.
    """

    def __init__(
        self,
        client: DraftWorkerClient,
        *,
        p_min: float = 0.4,
        top_k: int = 10,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._p_min, self._top_k = p_min, top_k
        self._clock = clock
        self._id = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._stream: DraftStream | None = None
        self._text: list[int] = []
        self._held = 0
        self._refused = False
        self._retry_at = 0.0
        self._backoff = _BACKOFF_SECONDS[0]
        #: steps without a draft because the worker was late or busy
        self.late = 0
        self.busy = 0
        #: the last thing that went wrong
        self.last_error: SuffixError | None = None

    def set_text(self, token_ids: Sequence[int]) -> None:
        """Start over with this text; what it shares with the one before stays on the worker. Nothing is
        sent: a worker that is never asked should not compute."""
        text = list(token_ids)
        self._settle()
        self._held = min(self._held, common_prefix(self._text, text))
        self._text = text
        self._refused = False

    def append(self, token_ids: Sequence[int]) -> None:
        """The text goes on; nothing is sent."""
        self._text.extend(token_ids)

    def draft(self, max_draft_tokens: int, timeout_seconds: float) -> Draft:
        """What follows the text, or nothing if it does not come in time."""
        if self._refused or not self._ready():
            return Draft.empty()
        if len(self._text) - self._held > _SENT_AHEAD:
            self._send(0)
            return Draft.empty()
        self._send(max_draft_tokens)
        stream = self._stream
        if stream is None or not stream.wait(timeout_seconds):
            self.late += 1
            return Draft.empty()
        return self._settle() or Draft.empty()

    def close(self) -> None:
        """Free the worker's KV and end the stream."""
        if self._stream is None:
            return
        if not self._stream.failed and not self._stream.outstanding:
            request = pb.WorkerDraftRequest(seq=next(self._numbers), session_id=self._id, forget=True)
            self._stream.send(request)
            self._stream.wait(1.0)
        self._stream.close()
        self._stream = None

    def _ready(self) -> bool:
        """Can a request go out now? Opens the stream where there is none."""
        self._settle()
        if self._stream is not None and self._stream.failed:
            self._stream.close()
            self._stream = None
            self._held = 0
            self._retry_at = self._clock() + self._backoff
            self._backoff = min(2 * self._backoff, _BACKOFF_SECONDS[1])
        if self._stream is None:
            if self._clock() < self._retry_at:
                return False
            self._stream = DraftStream(self._client.stub)
            self._held = 0
        if self._stream.outstanding:
            self.late += 1
            return False
        return True

    def _send(self, max_draft_tokens: int) -> None:
        if self._stream is None:
            return
        new = np.array(self._text[self._held :], np.int32)
        self._stream.send(
            pb.WorkerDraftRequest(
                seq=next(self._numbers),
                session_id=self._id,
                keep=self._held,
                new_token_ids=wire.pack_tokens(new),
                max_draft_tokens=max_draft_tokens,
                p_min=self._p_min,
                top_k=self._top_k,
            )
        )

    def _settle(self) -> Draft | None:
        """Take an answer that has come: what the worker holds now, and its draft."""
        reply = self._stream.take_answer() if self._stream is not None else None
        if reply is None:
            return None
        if reply.busy:
            self.busy += 1
            return None
        self._backoff = _BACKOFF_SECONDS[0]
        if reply.HasField("error"):
            self.last_error = wire.error_from_detail(reply.error)
            self._held = 0
            # what is wrong with this text stays wrong; only a worker that lost it can be told again
            self._refused = not isinstance(self.last_error, (UnknownSessionError, AppendGap))
            return None
        # hostile or not: what it claims to hold beyond our text is nothing we could keep
        self._held = max(0, min(reply.length, len(self._text)))
        with contextlib.suppress(SuffixError):
            return wire.draft_from_proto(reply.draft)
        return None

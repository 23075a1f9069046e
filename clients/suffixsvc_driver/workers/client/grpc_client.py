"""Client of a draft worker (``suffixsvc draft-worker``), over gRPC.

A worker receives the texts of generations. The listener of a ``unix:PATH`` address is therefore checked
before every call (:mod:`suffixsvc.transport.peer_credentials`); every checked socket file has its own channel
(:mod:`suffixsvc.transport.channels`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import grpc

from suffixsvc.errors import ProtocolError, ServiceUnavailableError, SuffixError
from suffixsvc.transport.channels import Channels, close_channel
from suffixsvc.transport.identity import CallCredential, ClientIdentity
from suffixsvc.transport.peer_credentials import (
    AbsentPeerError,
    CheckedSocket,
    ExpectedPeer,
    resolve_socket_paths,
)
from suffixsvc.v1 import draft_worker_pb2 as pb
from suffixsvc.v1 import draft_worker_pb2_grpc as rpc
from suffixsvc_driver.workers.client.grpc_stream import ConnectedWorker, DraftStream, error_of_call
from suffixsvc_driver.workers.client.interface import WorkerDescription
from suffixsvc_driver.workers.client.single import CONNECT_SECONDS, SingleWorker, require_speeds
from suffixsvc_models.vocabulary import Vocabulary

#: sessions and pools have their own backoff: gRPC's must not outlast a restart
_CHANNEL_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    # the path of a closed socket file may be used again by another one: do not reuse its connection
    ("grpc.use_local_subchannel_pool", 1),
)
_START_REMEDY: Final = "Start one: suffixsvc draft-worker --model X.gguf --listen ADDRESS"
_PEER: Final = ExpectedPeer(
    "a draft worker",
    _START_REMEDY,
    "Have the draft worker listen in a folder that only its user can write to, and own that folder.",
)
#: pause between attempts to reach a worker
_RETRY_SECONDS: Final = 0.05


class DraftWorkerClient(SingleWorker):
    """A connection to one of our workers. Use it as a context manager; closing it closes its sessions.

    Args:
        address: ``unix:PATH`` or ``HOST:PORT``.
        identity: token and certificates; None: those that the environment names.

    Raises:
        InvalidConfigError: a malformed address, or an invalid identity.
    """

    def __init__(self, address: str, identity: ClientIdentity | None = None) -> None:
        super().__init__(address)
        self.identity = ClientIdentity.from_environment() if identity is None else identity
        connect = partial(_connect, self.identity)
        self._channels: Channels[grpc.Channel] = Channels(address, _PEER, connect, close_channel)
        self.identity.check(address)

    @contextlib.contextmanager
    def connected(self) -> Iterator[ConnectedWorker]:
        """Connect to the process that listens now; calls must end with the block.

        Raises:
            ServiceUnavailableError: no process listens, another user owns it, or the client is closed.
        """
        with self._channels.use() as held:
            yield ConnectedWorker(
                rpc.DraftWorkerStub(held.channel), partial(self.identity.credential, held.ticket)
            )

    def _disconnect(self) -> None:
        self._channels.close()

    def describe(
        self, timeout_seconds: float = CONNECT_SECONDS, *, patient: bool = True
    ) -> WorkerDescription:
        """Return the worker's description.

        Args:
            patient: wait for a worker that does not listen yet.

        Raises:
            ServiceUnavailableError: no reply in time; or, at once, the listener belongs to another user.
            UnauthenticatedError: the worker does not know the client.
        """
        reply = self._call_describe(timeout_seconds, patient=patient)
        vocabulary = Vocabulary(
            kind=reply.vocab_type,
            size=reply.vocab_size,
            bos_id=reply.bos_id,
            eos_id=reply.eos_id,
            add_bos=reply.add_bos,
            add_eos=reply.add_eos,
            fingerprint=reply.fingerprint,
        )
        require_speeds(self.address, reply.seconds_per_token, reply.seconds_per_read_token)
        return WorkerDescription(
            reply.model,
            reply.context_size,
            reply.seconds_per_token,
            reply.parameters,
            reply.instance_id,
            vocabulary,
            seconds_per_read_token=reply.seconds_per_read_token,
            checks=max(0, reply.checks),
        )

    def _call_describe(self, timeout_seconds: float, *, patient: bool) -> pb.DescribeReply:
        # gRPC can wait for an address, but the channel to a checked socket file never reaches a worker that
        # listens at the path later: every attempt has to check the file again.
        checked = CheckedSocket.is_possible(self.address)
        deadline = time.monotonic() + timeout_seconds
        retried = False  # with another ticket
        while True:
            credential = CallCredential(None)
            try:
                with self.connected() as worker:
                    credential = worker.credential()
                    reply: pb.DescribeReply = worker.stub.Describe(
                        pb.DescribeRequest(),
                        metadata=credential.metadata,
                        timeout=max(0.0, deadline - time.monotonic()),
                        wait_for_ready=patient and not checked,
                    )
                    return reply
            except AbsentPeerError:
                if not patient or time.monotonic() + _RETRY_SECONDS >= deadline:
                    raise
            except (grpc.RpcError, ValueError) as err:
                lost = isinstance(err, grpc.Call) and err.code() is grpc.StatusCode.UNAVAILABLE
                found = self._unreachable(err)
                stale = not retried and credential.may_retry(found)
                retried = retried or stale
                again = stale or (patient and checked and lost)
                if not again or time.monotonic() + _RETRY_SECONDS >= deadline:
                    raise found from None
            time.sleep(_RETRY_SECONDS)

    def vocabulary(
        self, description: WorkerDescription, timeout_seconds: float = CONNECT_SECONDS
    ) -> Vocabulary:
        """Fetch the worker's vocabulary with its texts (some megabytes).

        Raises:
            ProtocolError: more texts than ids.
            ServiceUnavailableError: no reply in time.
        """
        known = description.vocabulary
        texts: list[bytes] = []
        try:
            request = pb.GetVocabRequest(fingerprint=known.fingerprint)
            with self.connected() as worker:
                metadata = worker.credential().metadata
                for chunk in worker.stub.GetVocab(request, metadata=metadata, timeout=timeout_seconds):
                    texts.extend(chunk.texts)
                    if len(texts) > known.size:
                        raise ProtocolError(
                            "a draft worker has more token texts than ids",
                            expected=known.size,
                            got=len(texts),
                        )
        except (grpc.RpcError, ValueError) as err:
            raise self._unreachable(err) from None
        return replace(known, texts=tuple(texts))

    def _verify(self, timeout_seconds: float, *, patient: bool) -> WorkerDescription:
        description = self.describe(timeout_seconds, patient=patient)
        return self.vocabulary_check.verify(
            description.instance_id,
            lambda: description,
            lambda _: self.vocabulary(description, timeout_seconds),
        )

    def _new_channel(self) -> DraftStream:
        return DraftStream(self.connected, self._verified_instance)

    def _unreachable(self, err: grpc.RpcError | ValueError) -> SuffixError:
        """``err``: gRPC raises ValueError on a closed channel."""
        sent = error_of_call(err)
        if sent is not None:
            return sent
        code, details = "no status", None
        if isinstance(err, grpc.Call):
            code, details = err.code().name, err.details()
        return ServiceUnavailableError(
            f"no draft worker answers at {self.address}",
            got=f"{code}: {resolve_socket_paths(details)[:300]}" if details else code,
            remedy=_START_REMEDY,
        )


def _connect(identity: ClientIdentity, address: str) -> grpc.Channel:
    return identity.channel(address, _CHANNEL_OPTIONS)

"""The driver's side of our own draft worker, over gRPC.

A worker is sent the texts of generations. At ``unix:PATH`` its listener is therefore checked as the service's
is (suffixsvc/peers.py): before every call, a channel for each checked socket file (suffixsvc/channels.py).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import grpc

from suffixsvc.channels import Channels, close_channel
from suffixsvc.errors import ProtocolError, ServiceUnavailableError
from suffixsvc.peers import AbsentPeerError, CheckedSocket, ExpectedPeer
from suffixsvc.v1 import draft_worker_pb2 as pb
from suffixsvc.v1 import draft_worker_pb2_grpc as rpc
from suffixsvc_driver.vocabulary import MAX_SIZE_DIFFERENCE, Vocabulary
from suffixsvc_driver.workers.interface import WorkerDescription
from suffixsvc_driver.workers.single import CONNECT_SECONDS, SingleWorker, require_speed
from suffixsvc_driver.workers.stream import DraftStream

__all__ = ["DraftWorkerClient"]

#: sessions and pools pause by themselves: gRPC's own pauses must not outlast a restart
_CHANNEL_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    # the address of a closed socket file is used again for another one: it must not lead to its connection
    ("grpc.use_local_subchannel_pool", 1),
)
_START_REMEDY: Final = "Start one: suffixsvc draft-worker --model X.gguf --listen ADDRESS"
_PEER: Final = ExpectedPeer(
    "a draft worker",
    _START_REMEDY,
    "Have the draft worker listen in a folder that only its user can write to, and own that folder.",
)
#: between attempts to reach a worker that is waited for
_RETRY_SECONDS: Final = 0.05


class DraftWorkerClient(SingleWorker):
    """A connection to one worker of ours. Use it as a context manager; sessions go with it.

    Args:
        address: ``unix:PATH`` or ``HOST:PORT``.

    Raises:
        InvalidConfigError: not an address.
    """

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._channels: Channels[grpc.Channel] = Channels(address, _PEER, _connect, close_channel)

    @contextlib.contextmanager
    def stub(self) -> Iterator[rpc.DraftWorkerStub]:
        """For calls that end with the block, to the process that listens now.

        Raises:
            ServiceUnavailableError: no process listens, it is not a trusted user's, or the client is closed.
        """
        with self._channels.use() as held:
            yield rpc.DraftWorkerStub(held.channel)

    def _disconnect(self) -> None:
        self._channels.close()

    def describe(self, timeout_seconds: float = CONNECT_SECONDS) -> WorkerDescription:
        """Ask the worker what it is.

        Raises:
            ServiceUnavailableError: no answer in time; or, at once, the listener is not a trusted user's.
        """
        return self._describe(timeout_seconds, patient=True)

    def _describe(self, timeout_seconds: float, *, patient: bool) -> WorkerDescription:
        """``patient``: waits for one that is not there yet."""
        reply = self._ask_description(timeout_seconds, patient=patient)
        vocabulary = Vocabulary(
            kind=reply.vocab_type,
            size=reply.vocab_size,
            bos_id=reply.bos_id,
            eos_id=reply.eos_id,
            add_bos=reply.add_bos,
            add_eos=reply.add_eos,
            fingerprint=reply.fingerprint,
        )
        require_speed(reply.seconds_per_token, self.address)
        require_speed(reply.seconds_per_read_token, self.address)
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

    def _ask_description(self, timeout_seconds: float, *, patient: bool) -> pb.DescribeReply:
        # gRPC can wait for an address, but the channel to a checked socket file never reaches a worker that
        # listens at the path later: each attempt has to look which file is there.
        checked = CheckedSocket.is_possible(self.address)
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                with self.stub() as stub:
                    reply: pb.DescribeReply = stub.Describe(
                        pb.DescribeRequest(),
                        timeout=max(0.0, deadline - time.monotonic()),
                        wait_for_ready=patient and not checked,
                    )
                    return reply
            except AbsentPeerError:
                if not patient or time.monotonic() + _RETRY_SECONDS >= deadline:
                    raise
            except (grpc.RpcError, ValueError) as err:
                lost = isinstance(err, grpc.Call) and err.code() is grpc.StatusCode.UNAVAILABLE
                if not (patient and checked and lost) or time.monotonic() + _RETRY_SECONDS >= deadline:
                    raise self._unreachable(err) from None
            time.sleep(_RETRY_SECONDS)

    def vocabulary(
        self, description: WorkerDescription, timeout_seconds: float = CONNECT_SECONDS
    ) -> Vocabulary:
        """The worker's vocabulary with its texts; some megabytes."""
        known = description.vocabulary
        texts: list[bytes] = []
        try:
            request = pb.GetVocabRequest(fingerprint=known.fingerprint)
            with self.stub() as stub:
                for chunk in stub.GetVocab(request, timeout=timeout_seconds):
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

    def _admit(self, timeout_seconds: float, *, patient: bool) -> WorkerDescription:
        description = self._describe(timeout_seconds, patient=patient)
        found = self.admission.known(description.instance_id)
        if found is not None:
            return found
        vocabulary, target = description.vocabulary, self.admission.target
        same = target is not None and vocabulary.fingerprint == target.fingerprint
        near = target is not None and abs(vocabulary.size - target.size) <= MAX_SIZE_DIFFERENCE
        if same or not near:  # where the size is wrong already, its texts are not worth megabytes
            return self.admission.compare(description, vocabulary, "by its fingerprint")
        vocabulary = self.vocabulary(description, timeout_seconds)
        return self.admission.compare(description, vocabulary, f"the texts of {len(vocabulary.texts)} ids")

    def _converse(self) -> DraftStream:
        return DraftStream(self.stub, self._admitted)

    def _unreachable(self, err: grpc.RpcError | ValueError) -> ServiceUnavailableError:
        """ValueError: the channel was closed."""
        code = err.code().name if isinstance(err, grpc.Call) else "no status"
        return ServiceUnavailableError(
            f"no draft worker answers at {self.address}",
            got=code,
            remedy=_START_REMEDY,
        )


def _connect(address: str) -> grpc.Channel:
    return grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)

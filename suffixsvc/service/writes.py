"""Bulk writes and deletions of a service: large ones take turns, each message as a whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import structlog

from suffixsvc import wire
from suffixsvc.access.caller import Caller, session_name
from suffixsvc.access.principals import Right
from suffixsvc.config import Limits
from suffixsvc.errors import InvalidInputError, SuffixError
from suffixsvc.runtime.turns import Turns
from suffixsvc.selection import Selection
from suffixsvc.service.calls.large_messages import LargeMessages
from suffixsvc.service.followers.service import FollowerService
from suffixsvc.service.messages import converters
from suffixsvc.v1 import suffix_cache_pb2 as pb

if TYPE_CHECKING:
    from suffixsvc.engine import SuffixCache

log = structlog.get_logger(__name__)

#: bytes from which a message takes a turn
_LARGE_BYTES: Final = 16 << 10


class Writes:
    """What a service's callers add and delete besides sessions. Thread-safe.

    Args:
        followers: say which of them have applied a deletion.
        limits: of the service.
        large_messages: that are in progress.
    """

    def __init__(
        self,
        cache: SuffixCache,
        followers: FollowerService,
        limits: Limits,
        large_messages: LargeMessages,
    ) -> None:
        self._cache = cache
        self._followers = followers
        self._limits = limits
        self._large_messages = large_messages
        self._turns = Turns()

    def add_outputs(self, requests: Iterable[pb.AddOutputsRequest], caller: Caller) -> pb.AddOutputsReply:
        """See ``Handlers.add_outputs``."""
        reply = pb.AddOutputsReply()
        try:
            for index, request in enumerate(requests):  # a message that is too large or late raises here
                # what is pinned takes the room of others until an administrator deletes it
                pinned = any(output.corpus for output in request.outputs)
                caller.require(Right.ADMIN if pinned else Right.WRITE, request.namespace)
                size = request.ByteSize()
                if size < _LARGE_BYTES:
                    # small ones are written side by side, so that one commit of the log has many
                    self._add(request, reply, caller, first=index == 0)
                    continue
                with (
                    self._large_messages.in_progress(caller.principal, size),
                    self._turns.taken(caller.principal),
                ):
                    self._add(request, reply, caller, first=index == 0)
        except SuffixError as error:
            stored = f" ({reply.outputs} outputs of this call were stored)"
            raise error.with_message(error.message + stored) from error
        return reply

    def _add(
        self, request: pb.AddOutputsRequest, reply: pb.AddOutputsReply, caller: Caller, *, first: bool
    ) -> None:
        outputs = converters.new_outputs(request, self._limits, caller.principal)
        if outputs:
            namespace = self._cache.namespace(
                request.namespace, request.tokenizer, bind=False, creator=caller.creator
            )
            reply.output_ids.extend(namespace.add_outputs(outputs))
            reply.outputs += len(outputs)
            reply.tokens += sum(len(output.token_ids) for output in outputs)
        elif not first:
            # Empty messages would extend a call's deadline without end. The first one may be empty: a client
            # without outputs to add sends one.
            raise InvalidInputError(
                "outputs must hold at least one output in every message after the first",
                expected="1 or more",
                got=0,
                remedy="End the call after the last output.",
            )

    def delete(self, request: pb.DeleteRequest, caller: Caller) -> pb.DeleteReply:
        """Delete what a selection takes; the reply says which followers have applied the deletion."""
        given = wire.selection_from_proto(request.selection)
        selection = _permitted_selection(given, caller)
        if request.from_disk:  # writes of all principals wait meanwhile
            caller.require_everywhere(Right.ADMIN, "an erasure that is waited for")
        with self._turns.taken(caller.principal):
            deletion = self._cache.delete(selection, superseded=request.superseded)
        # a program that replaces outputs of its own does so with every answer
        replaced = request.superseded and selection.output_ids is not None
        (log.debug if replaced else log.info)(
            "outputs deleted",
            principal=caller.principal,
            selection=_audited(given),
            superseded=request.superseded,
            outputs=deletion.outputs,
            sessions=deletion.sessions,
            namespaces=len(deletion.namespaces),
            from_disk=request.from_disk,
        )
        # before the erasure, which takes longer
        receipt = self._followers.receipt(self._cache.published_above(deletion.namespaces))
        if request.from_disk:
            self._cache.erase()
        return pb.DeleteReply(
            outputs=deletion.outputs,
            sessions=deletion.sessions,
            namespaces=deletion.namespaces,
            receipt=receipt,
            from_disk=request.from_disk,
        )

    def delete_namespace(self, request: pb.DeleteNamespaceRequest, caller: Caller) -> pb.DeleteNamespaceReply:
        """Delete a namespace with its outputs; the reply has their number, and a receipt as of Delete."""
        caller.require(Right.ADMIN, request.namespace)
        with self._turns.taken(caller.principal):
            outputs = self._cache.delete_namespace(request.namespace, force=request.force)
        log.info(
            "namespace deleted",
            principal=caller.principal,
            namespace=request.namespace,
            force=request.force,
            outputs=int(outputs),
        )
        receipt = self._followers.receipt(self._cache.published_above([request.namespace]))
        return pb.DeleteNamespaceReply(outputs=outputs, receipt=receipt)


def _audited(selection: Selection) -> dict[str, Any]:
    """The criteria of a selection for the log: of labels the names, of ids of outputs their number."""
    criteria = {
        "namespace": selection.namespace or None,
        "output_ids": None if selection.output_ids is None else len(selection.output_ids),
        "session_id": selection.session_id or None,
        "labels": sorted(selection.labels) or None,
        "principal": selection.principal,
        "older_than_seconds": selection.older_than_seconds,
    }
    return {name: value for name, value in criteria.items() if value is not None}


def _permitted_selection(selection: Selection, caller: Caller) -> Selection:
    """A selection whose session is that of its principal, or else of the caller.

    Raises:
        PermissionDeniedError: the caller may not delete from its namespace, or from all.
    """
    if selection.namespace:
        caller.require(Right.ADMIN, selection.namespace)
    else:
        caller.require_everywhere(Right.ADMIN, "a deletion in all namespaces")
    if not selection.session_id:
        return selection
    principal = caller.principal if selection.principal is None else selection.principal
    return replace(selection, session_id=session_name(principal, selection.session_id).stored)

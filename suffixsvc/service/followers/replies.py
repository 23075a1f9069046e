"""Replies of Watch, serialised: contents, changes and live text in messages of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import Final

from more_itertools import constrained_batches

from suffixsvc import wire
from suffixsvc.errors import LimitExceededError, SuffixError
from suffixsvc.index.live_text import TextPiece
from suffixsvc.log_types import LogChanges, LogPosition, NamespaceContents
from suffixsvc.log_wire import deletion_to_proto, output_to_proto, position_to_proto
from suffixsvc.service.messages.errors import error_detail
from suffixsvc.types import StoredOutput
from suffixsvc.v1 import watch_pb2 as pb

#: bytes of outputs, and outputs, after which a message is complete
MESSAGE_BYTES: Final = 1 << 20
MESSAGE_OUTPUTS: Final = 256
#: bytes of an output besides its tokens, at most: ids, lengths, tags
_OUTPUT_BYTES: Final = 512
#: bytes of a piece of live text besides its tokens, at most
_PIECE_BYTES: Final = 256


class TooLargeError(Exception):
    """A message of a namespace exceeds the limit; ``error`` is for the follower."""

    def __init__(self, path: str, error: LimitExceededError) -> None:
        super().__init__(path)
        self.path = path
        self.error = error


class ReplyWriter:
    """Serialises replies and keeps the limit on their size.

    Args:
        max_message_bytes: of a reply.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self._most = max_message_bytes
        #: a message can be this much longer than the outputs in it
        self._target = min(MESSAGE_BYTES, max_message_bytes // 2)

    def _of_namespace(self, path: str, reply: pb.WatchReply) -> bytes:
        data: bytes = reply.SerializeToString()
        if len(data) > self._most:
            raise TooLargeError(
                path,
                LimitExceededError(
                    f"the messages of namespace {path!r} must not be larger than those of this service",
                    expected=f"at most {self._most} bytes",
                    got=len(data),
                    remedy="Serve with a larger --max-message-mib, or compact the namespace if it has many "
                    "deleted outputs.",
                ),
            )
        return data

    # --------------------------------------------------------------------------------------- contents

    def contents(self, contents: NamespaceContents, sealed: pb.SealedContents) -> bytes:
        """What a namespace holds, without its hot outputs."""
        message = pb.NamespaceContents(
            namespace=contents.path,
            tokenizer=contents.tokenizer,
            generation=contents.generation,
            position=position_to_proto(contents.position),
            sealed=sealed,
            learned=contents.learned,
        )
        return self._of_namespace(contents.path, pb.WatchReply(contents=message))

    def hot_outputs(self, path: str, outputs: Iterable[StoredOutput]) -> Iterator[bytes]:
        """The hot outputs of contents; at least one message."""
        for part in self._parts(outputs):
            message = pb.HotOutputs(namespace=path, outputs=map(output_to_proto, part))
            yield self._of_namespace(path, pb.WatchReply(outputs=message))
        yield pb.WatchReply(outputs=pb.HotOutputs(namespace=path, last=True)).SerializeToString()

    def sealed(self, path: str, sealed: pb.SealedContents) -> bytes:
        """The segments of a namespace."""
        return self._of_namespace(path, pb.WatchReply(sealed=sealed))

    def refused(self, path: str, error: SuffixError) -> bytes:
        """A namespace is not followed (any more)."""
        detail = error_detail(error, "Watch")
        reply = pb.WatchReply(refused=pb.NamespaceRefused(namespace=path, error=detail))
        return bytes(reply.SerializeToString())

    def _parts(self, outputs: Iterable[StoredOutput]) -> Iterator[tuple[StoredOutput, ...]]:
        return constrained_batches(outputs, self._target, MESSAGE_OUTPUTS, _size_of, strict=False)

    # ---------------------------------------------------------------------------------------- changes

    def position(self, position: LogPosition) -> bytes:
        """Nothing has changed up to a position."""
        reply = pb.WatchReply(changes=pb.LogChanges(position=position_to_proto(position)))
        return bytes(reply.SerializeToString())

    def changes(self, found: LogChanges, paths: Mapping[int, str], before: LogPosition) -> Iterator[bytes]:
        """Changes of namespaces, in messages of which the last one has their position.

        Args:
            paths: of the generations; changes of others are left out.
            before: the position after which the changes are; that of all other messages.
        """
        for part in self._parts(stored for generation, stored in found.outputs if generation in paths):
            yield self._changes({path: _Changes(outputs) for path, outputs in _by_path(part)}, before)
        deleted: dict[str, _Changes] = {}
        for deletion in found.deletions:
            if deletion.generation in paths:
                changes = deleted.setdefault(paths[deletion.generation], _Changes())
                changes.deletions.append(deletion_to_proto(deletion))
        yield self._changes(deleted, found.position)

    def _changes(self, of_paths: Mapping[str, _Changes], position: LogPosition) -> bytes:
        message = pb.LogChanges(
            position=position_to_proto(position),
            namespaces=[
                pb.NamespaceChanges(
                    namespace=path, outputs=map(output_to_proto, each.outputs), deletions=each.deletions
                )
                for path, each in of_paths.items()
            ],
        )
        return self._of_namespace(next(iter(of_paths), ""), pb.WatchReply(changes=message))

    def drafting(self, path: str, *, off: bool) -> bytes:
        """Whether sessions of a namespace draft, and others from it."""
        message = pb.WatchReply(drafting=pb.NamespaceDrafting(namespace=path, off=off))
        return message.SerializeToString()

    # -------------------------------------------------------------------------------------- live text

    def live(
        self,
        path: str,
        pieces: Iterable[tuple[str, TextPiece | None]],
        *,
        reset: bool = False,
    ) -> list[bytes]:
        """Live text by session id; None: the session is over. No message if there is nothing to say."""
        parts: Iterable[Sequence[pb.LivePiece]] = constrained_batches(
            starmap(_live_piece, pieces), self._target, get_len=_size_of_piece, strict=False
        )
        messages = [
            pb.LiveText(namespace=path, pieces=part, reset=reset and number == 0)
            for number, part in enumerate(parts)
        ]
        if reset and not messages:
            messages.append(pb.LiveText(namespace=path, reset=True))
        return [pb.WatchReply(live=message).SerializeToString() for message in messages]


def _live_piece(session_id: str, piece: TextPiece | None) -> pb.LivePiece:
    if piece is None:
        return pb.LivePiece(session_id=session_id, ended=True)
    return pb.LivePiece(
        session_id=session_id,
        at=piece.at,
        context=wire.pack_tokens(piece.context),
        output=wire.pack_tokens(piece.output),
    )


def _size_of_piece(piece: pb.LivePiece) -> int:
    return len(piece.context) + len(piece.output) + _PIECE_BYTES


@dataclass(slots=True)
class _Changes:
    outputs: Sequence[StoredOutput] = ()
    deletions: list[pb.LoggedDeletion] = field(default_factory=list)


def _by_path(outputs: Sequence[StoredOutput]) -> Iterator[tuple[str, list[StoredOutput]]]:
    found: dict[str, list[StoredOutput]] = {}
    for stored in outputs:
        found.setdefault(stored.output.namespace, []).append(stored)
    yield from found.items()


def _size_of(stored: StoredOutput) -> int:
    output = stored.output
    return (
        4 * (len(output.token_ids) + len(output.prompt_tail)) + 5 * len(output.segment_lens) + _OUTPUT_BYTES
    )

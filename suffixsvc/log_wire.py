"""Conversion between the messages of ``watch.proto`` and the values of :mod:`suffixsvc.log_types`.

Shared by the service and its followers. What is received is validated: a malformed message raises
ProtocolError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NoReturn

import numpy as np

from suffixsvc.config import PROMPT_TAIL_TOKENS
from suffixsvc.errors import InvalidTokensError, ProtocolError
from suffixsvc.log_types import Deletion, LogPosition, SealedContents
from suffixsvc.types import NewOutput, OutputId, SegmentRecord, StoredOutput, TokenArray
from suffixsvc.v1 import watch_pb2 as pb
from suffixsvc.wire import pack_tokens, unpack_tokens

#: version of the messages
WATCH_PROTOCOL: Final = 1
#: as the generation of contents: published runs of a namespace, none of its outputs
PUBLISHED_GENERATION: Final = 2**64 - 1
_IDS: Final = np.dtype("<u8")
_UUID_BYTES: Final = 16
_DIGEST_BYTES: Final = 16


def pack_ids(ids: Iterable[OutputId]) -> bytes:
    """Output ids as packed little-endian uint64."""
    return np.fromiter(ids, _IDS).tobytes()


def unpack_ids(data: bytes, name: str) -> list[OutputId]:
    """The inverse of :func:`pack_ids`; ProtocolError for a torn id."""
    if len(data) % 8:
        _malformed(name, "a multiple of 8 bytes", f"{len(data)} bytes")
    ids: list[int] = np.frombuffer(data, _IDS).tolist()
    return ids


def position_to_proto(position: LogPosition) -> pb.LogPosition:
    """A position for the wire."""
    return pb.LogPosition(node_id=position.node_id, lsn=position.lsn, run=position.run)


def position_from_proto(message: pb.LogPosition) -> LogPosition:
    """A position from the wire."""
    return LogPosition(message.node_id, message.lsn, message.run)


def output_to_proto(stored: StoredOutput) -> pb.LoggedOutput:
    """An output for the wire, without its labels and times, which followers do not use."""
    output = stored.output
    one_run = len(output.segment_lens) == 1
    return pb.LoggedOutput(
        output_id=stored.output_id,
        uuid=output.uuid,
        token_ids=pack_tokens(output.token_ids),
        prompt_tail=pack_tokens(output.prompt_tail),
        segment_lens=() if one_run else output.segment_lens,
        session_id=output.session_id,
        incomplete=output.incomplete,
    )


def output_from_proto(namespace: str, message: pb.LoggedOutput) -> StoredOutput:
    """An output of a namespace from the wire, without labels, with time 0. ProtocolError: malformed."""
    tokens = _tokens(message.token_ids, "token_ids")
    tail = _tokens(message.prompt_tail, "prompt_tail")
    runs = tuple(message.segment_lens) or (len(tokens),)
    if not len(tokens) or not message.output_id:
        _malformed(
            "an output", "an id and at least one token", f"id {message.output_id}, {len(tokens)} tokens"
        )
    if len(tail) > PROMPT_TAIL_TOKENS:
        _malformed("prompt_tail", f"at most {PROMPT_TAIL_TOKENS} tokens", len(tail))
    if min(runs) < 1 or sum(runs) != len(tokens):
        _malformed("segment_lens", f"positive lengths that sum to {len(tokens)}", list(runs)[:8])
    if len(message.uuid) != _UUID_BYTES:
        _malformed("uuid", f"{_UUID_BYTES} bytes", f"{len(message.uuid)} bytes")
    output = NewOutput(
        namespace,
        tokens,
        runs,
        tail,
        incomplete=message.incomplete,
        uuid=message.uuid,
        session_id=message.session_id,
    )
    return StoredOutput(message.output_id, 0.0, output)


def deletion_to_proto(deletion: Deletion) -> pb.LoggedDeletion:
    """A deletion for the wire; its namespace is that of the message around it."""
    return pb.LoggedDeletion(output_id=deletion.output_id, uuid=deletion.uuid)


def sealed_to_proto(
    namespace: str, sealed: SealedContents, digest_of: Callable[[str], bytes]
) -> pb.SealedContents:
    """The segments of a namespace for the wire.

    Args:
        digest_of: the digest of a segment file's header, by its name.
    """
    return pb.SealedContents(
        namespace=namespace,
        segments=[
            pb.SealedSegment(
                name=each.name,
                first_lsn=each.first_lsn,
                last_lsn=each.last_lsn,
                outputs=each.outputs,
                tokens=each.tokens,
                file_bytes=each.file_bytes,
                header_digest=digest_of(each.name),
            )
            for each in sealed.segments
        ],
        deleted=pack_ids(sealed.deleted),
    )


def sealed_from_proto(message: pb.SealedContents) -> tuple[SealedContents, Mapping[str, bytes]]:
    """The segments of a namespace, and the digests of their headers by name. ProtocolError: malformed."""
    records, digests, last = [], {}, 0
    for each in message.segments:
        if not last < each.first_lsn <= each.last_lsn:
            _malformed(
                "segments", "ascending ranges that do not overlap", f"{each.first_lsn} .. {each.last_lsn}"
            )
        if len(each.header_digest) != _DIGEST_BYTES or not each.name or "/" in each.name or "\0" in each.name:
            _malformed("a segment", "the name of a file and a digest of 16 bytes", ascii(each.name)[:80])
        last = each.last_lsn
        digests[each.name] = each.header_digest
        records.append(
            SegmentRecord(
                each.name, each.first_lsn, each.last_lsn, each.outputs, each.tokens, each.file_bytes
            )
        )
    return SealedContents(tuple(records), tuple(unpack_ids(message.deleted, "deleted"))), digests


def live_tokens(message: pb.LivePiece) -> tuple[TokenArray, TokenArray]:
    """Context and output of a piece of live text. ProtocolError: malformed."""
    return _tokens(message.context, "context"), _tokens(message.output, "output")


def _tokens(data: bytes, name: str) -> TokenArray:
    try:
        return unpack_tokens(data, name)
    except InvalidTokensError as error:
        raise ProtocolError(f"a reply is malformed: {error.message}", got=error.got) from None


def _malformed(what: str, expected: str, got: object) -> NoReturn:
    raise ProtocolError(f"a reply is malformed: {what}", expected=expected, got=got)

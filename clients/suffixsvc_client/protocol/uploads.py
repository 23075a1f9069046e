"""Messages of a bulk load, split by the service's limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from suffixsvc import wire
from suffixsvc.types import NewOutput
from suffixsvc.v1 import suffix_cache_pb2 as pb

__all__ = ["UNLIMITED", "MessageLimits", "message_limits", "upload_messages"]

#: approximate size of one AddOutputs message
UPLOAD_BYTES = 1 << 20
#: the namespace and the tokenizer of such a message
_HEAD_BYTES: Final = 1024
#: the tag and the length of an output
_ITEM_HEAD_BYTES: Final = 6


class MessageLimits(NamedTuple):
    """Limits on one message of a bulk load: outputs, runs of output, bytes."""

    outputs: int
    segments: int
    size: int


UNLIMITED: Final = MessageLimits(1 << 62, 1 << 62, UPLOAD_BYTES)


def message_limits(info: pb.GetServerInfoReply) -> MessageLimits:
    """The limits of a service; a service that reports none has none."""
    return MessageLimits(
        info.max_outputs_per_message or UNLIMITED.outputs,
        info.max_segments_per_message or UNLIMITED.segments,
        # names and framing take some bytes as well
        min(UPLOAD_BYTES, max(1, info.max_message_bytes - _HEAD_BYTES))
        if info.max_message_bytes
        else UPLOAD_BYTES,
    )


def upload_messages(
    namespace: str, tokenizer: str, outputs: Iterable[NewOutput], limits: MessageLimits
) -> Iterator[pb.AddOutputsRequest]:
    """The outputs as messages within the limits; one message without outputs if there are none."""
    message = pb.AddOutputsRequest(namespace=namespace, tokenizer=tokenizer)
    size = segments = 0
    for output in outputs:
        item = pb.OutputItem(
            token_ids=wire.pack_tokens(output.token_ids),
            prompt_token_ids=wire.pack_tokens(output.prompt_tail),
            labels=dict(output.labels),
            ttl_seconds=output.ttl_seconds,
            segment_lens=output.segment_lens,
            incomplete=output.incomplete,
            corpus=output.corpus,
            uuid=output.uuid,
        )
        item_size = item.ByteSize() + _ITEM_HEAD_BYTES
        full = (
            size + item_size > limits.size
            or segments + len(item.segment_lens) > limits.segments
            or len(message.outputs) >= limits.outputs
        )
        if message.outputs and full:
            yield message
            message, size, segments = pb.AddOutputsRequest(namespace=namespace, tokenizer=tokenizer), 0, 0
        message.outputs.append(item)
        size += item_size
        segments += len(item.segment_lens)
    yield message

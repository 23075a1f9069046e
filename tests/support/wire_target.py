"""Fuzz target of the wire's decoders, for the fuzzer and for the test of its corpus.

The first byte of an input selects the decoder, the others are its message:

    Draft, VerifyCost, Verified, ErrorDetail    suffixsvc.wire, both directions
    OpenSessionRequest, StepRequest, ...        the converters of the service
    StreamRequest                               a service, with the core's dispatcher and without it

The element counter reads each message as well.

Any bytes may be refused by a typed error. Any other exception is a finding, as is an answer that does not
survive a round trip, and a dispatcher whose answers differ from those of protobuf and Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError, Message

from suffixsvc import Draft, Limits, SuffixCache, wire
from suffixsvc.access.caller import OPERATOR_CALLER
from suffixsvc.config import PROMPT_TAIL_TOKENS
from suffixsvc.errors import InvalidInputError, SuffixError
from suffixsvc.service.handlers import Handlers
from suffixsvc.service.messages import converters
from suffixsvc.service.messages.elements import MessageReader
from suffixsvc.types import TokenArray
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import types_pb2
from suffixsvc.values import as_cost_curve

__all__ = ["KINDS", "Services", "run_one", "seeds"]

LIMITS: Final = Limits(max_session_tokens=200, max_output_tokens=64, max_draft_tokens=12, max_sessions=6)
#: messages that one pair of services answers before it is replaced, which bounds its contents
_MESSAGES: Final = 500
_TEXT: Final = np.arange(100, 150, dtype=np.int32)


# ------------------------------------------------------------------------------------------- wire.py


def _draft(message: types_pb2.Draft) -> None:
    draft = wire.draft_from_proto(message)
    n = len(draft)
    assert len(draft.parents) == len(draft.probs) == len(draft.sources) == len(draft.match_lens) == n
    assert (draft.token_ids >= 0).all()
    assert (draft.match_lens >= 0).all()
    assert ((draft.parents >= -1) & (draft.parents < np.arange(n))).all()
    assert ((draft.probs >= 0) & (draft.probs <= 1)).all()
    _same(draft, wire.draft_from_proto(wire.draft_to_proto(draft)))


def _same(a: Draft, b: Draft) -> None:
    for name in ("token_ids", "parents", "probs", "sources", "match_lens"):
        left, right = getattr(a, name), getattr(b, name)
        assert left.dtype == right.dtype
        assert left.tobytes() == right.tobytes(), name


def _cost(message: types_pb2.VerifyCost) -> None:
    cost = wire.cost_from_proto(message)
    if cost is None:
        return
    curve = as_cost_curve(cost, 8)
    assert np.isfinite(curve[1:]).all()
    again = wire.cost_from_proto(wire.cost_to_proto(cost))
    assert again is not None
    assert np.asarray(again)[()].tobytes() == np.asarray(cost)[()].tobytes()


def _verified(message: pb.Verified) -> None:
    verified = wire.verified_from_proto(message)
    assert 0 <= verified.accepted < verified.width
    assert wire.verified_from_proto(wire.verified_to_proto(verified)) == verified


def _error(message: types_pb2.ErrorDetail) -> None:
    error = wire.error_from_detail(message)
    assert isinstance(error, SuffixError)
    wire.status_of(error)
    again = wire.error_from_detail(wire.detail_from_error(error))
    assert type(again) is type(error)


# ---------------------------------------------------------------------------------------- converters


def _tokens(tokens: TokenArray) -> None:
    assert tokens.dtype == np.int32
    assert not tokens.size or tokens.min() >= 0
    assert wire.unpack_tokens(wire.pack_tokens(tokens)).tobytes() == tokens.tobytes()


def _open(request: pb.OpenSessionRequest) -> None:
    with SuffixCache(limits=LIMITS) as cache:
        cache.namespace("a")  # that the seeds read
        reply = Handlers(cache, LIMITS, durable=False).open_session(request, OPERATOR_CALLER)
    prompt, output = (wire.unpack_tokens(ids) for ids in (request.prompt_token_ids, request.output_token_ids))
    _tokens(prompt)
    _tokens(output)
    assert reply.length == len(prompt) + len(output) <= LIMITS.max_session_tokens
    assert 0 < len(reply.session_id.encode()) <= 128
    assert reply.session_id == request.session_id or not request.session_id
    assert 0 < len(request.namespace.encode()) <= 200


def _step(request: pb.StepRequest) -> None:
    _, _, _, at, draft_tokens, tree, width, accepted, _ = converters.native_step(request, LIMITS)
    assert 0 <= draft_tokens <= LIMITS.max_draft_tokens
    assert at >= -1
    assert tree in (0, 1, 2)
    assert width == accepted == 0 or 0 <= accepted < width


def _append(request: pb.AppendContextRequest) -> None:
    _tokens(wire.unpack_tokens(request.token_ids))
    at = converters.position(request)
    assert at is None or at >= 0


def _outputs(request: pb.AddOutputsRequest) -> None:
    outputs = converters.new_outputs(request, LIMITS, "")
    assert len(outputs) == len(request.outputs)
    with SuffixCache(limits=LIMITS) as cache:
        assert not outputs or len(cache.namespace(request.namespace).add_outputs(outputs)) == len(outputs)
    for output in outputs:
        _tokens(output.token_ids)
        _tokens(output.prompt_tail)
        assert 0 < len(output.token_ids) <= LIMITS.max_output_tokens
        assert len(output.prompt_tail) <= PROMPT_TAIL_TOKENS
        assert sum(output.segment_lens) == len(output.token_ids)


# ---------------------------------------------------------------------------------------- the stream


class Services:
    """Two services with the same requests: one uses the core's dispatcher, one protobuf and Python."""

    def __init__(self) -> None:
        self._remaining = 0
        self._caches: list[SuffixCache] = []
        self._handlers: list[Handlers] = []
        self._comparable = True

    def answer(self, data: bytes) -> None:
        """Send a stream message to both services and compare the answers."""
        if self._remaining == 0:
            self.close()
            self._begin()
        self._remaining -= 1
        with_dispatcher, without = self._handlers
        try:
            request = pb.StreamRequest.FromString(data)
        except DecodeError:
            try:
                with_dispatcher.message_bytes(data, OPERATOR_CALLER)
            except InvalidInputError:
                return
            raise AssertionError("the dispatcher parsed bytes that are not a StreamRequest") from None
        _counted(pb.StreamRequest, data, request)
        answers = [
            pb.StreamReply.FromString(raw)
            for raw in (
                with_dispatcher.message_bytes(data, OPERATOR_CALLER),
                without.answer_remaining(data, None, OPERATOR_CALLER),
            )
        ]
        for answer in answers:
            assert answer.id == request.id
            assert request.WhichOneof("request") != "steps" or len(answer.steps.items) == len(
                request.steps.items
            )
            self._read(answer)
        # Sessions of a batch step concurrently and may or may not use each other's text. Session ids of the
        # service are random.
        self._comparable &= len(request.steps.items) <= 1
        for answer in answers:
            if answer.HasField("open"):
                answer.open.session_id = ""
            if not self._comparable:
                for item in answer.steps.items:
                    item.reply.ClearField("draft")
        assert answers[0] == answers[1], "the answers differ"

    def _read(self, answer: pb.StreamReply) -> None:
        """Parse an answer as a client does."""
        if answer.HasField("error"):
            wire.error_from_detail(answer.error)
            assert answer.error.code != types_pb2.ERROR_CODE_INTERNAL, answer.error.message
        for item in answer.steps.items:
            if item.HasField("error"):
                wire.error_from_detail(item.error.error)
                assert item.error.error.code != types_pb2.ERROR_CODE_INTERNAL, item.error.error.message
            else:
                assert len(wire.draft_from_proto(item.reply.draft)) <= LIMITS.max_draft_tokens

    def _begin(self) -> None:
        self._remaining, self._comparable = _MESSAGES, True
        for _ in range(2):
            cache = SuffixCache(limits=LIMITS)
            self._caches.append(cache)
            cache.namespace("a").add_output(_TEXT)
            handlers = Handlers(cache, LIMITS, durable=False)
            for session_id in ("a", "b"):
                handlers.open_session(
                    pb.OpenSessionRequest(
                        namespace="a", session_id=session_id, prompt_token_ids=wire.pack_tokens(_TEXT[:2])
                    ),
                    OPERATOR_CALLER,
                )
            self._handlers.append(handlers)

    def close(self) -> None:
        """Check and close both caches. Idempotent."""
        for cache in self._caches:
            cache.check()
            cache.close()
        self._caches.clear()
        self._handlers.clear()
        self._remaining = 0


# ----------------------------------------------------------------------------------- elements on the wire


def _counted(message_type: type[Message], data: bytes, message: Message) -> None:
    """Check that the element counter accepts a message that protobuf parses, and counts no less."""
    counts = _COUNTERS[message_type].count(data)
    for path, least in _elements_of(message, "").items():
        assert counts[path] >= least, path


def _elements_of(message: Message, prefix: str) -> dict[str, int]:
    """Number of elements of each repeated field by path, over all nested messages."""
    found: dict[str, int] = {}
    for field, value in message.ListFields():
        path = f"{prefix}{field.name}"
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            found[path] = found.get(path, 0) + len(value)
            continue
        values = value if field.is_repeated else [value]
        if field.is_repeated:
            found[path] = found.get(path, 0) + len(values)
        if field.message_type is not None:
            for each in values:
                for inner, count in _elements_of(each, f"{path}.").items():
                    found[inner] = found.get(inner, 0) + count
    return found


def _repeated_of(descriptor: Any, prefix: str) -> list[str]:
    paths = []
    for field in descriptor.fields:
        path = f"{prefix}{field.name}"
        paths += [path] if field.is_repeated else []
        paths += _repeated_of(field.message_type, f"{path}.") if field.message_type is not None else []
    return paths


# --------------------------------------------------------------------------------------------- one input

#: (message type, decoder) by the first byte; the stream is last
KINDS: Final[tuple[tuple[type[Message], Callable[[Any], None] | None], ...]] = (
    (types_pb2.Draft, _draft),
    (types_pb2.VerifyCost, _cost),
    (pb.Verified, _verified),
    (types_pb2.ErrorDetail, _error),
    (pb.OpenSessionRequest, _open),
    (pb.StepRequest, _step),
    (pb.AppendContextRequest, _append),
    (pb.AddOutputsRequest, _outputs),
    (pb.StreamRequest, None),
)


_COUNTERS: Final = {
    kind: MessageReader(kind, dict.fromkeys(_repeated_of(kind.DESCRIPTOR, ""), 1 << 60), 1 << 60)
    for kind, _ in KINDS
}


def run_one(data: bytes, services: Services) -> None:
    """Run one input. Any exception is a finding."""
    if not data:
        return
    message_type, read = KINDS[data[0] % len(KINDS)]
    if read is None:
        services.answer(data[1:])
        return
    try:
        message = message_type.FromString(data[1:])
    except DecodeError:
        return
    _counted(message_type, data[1:], message)
    try:
        read(message)
    except SuffixError as error:
        named = error.expected is not None or " must " in error.message
        assert named, f"{error!r} must name a condition"  # noqa: PT017 - no pytest here
        wire.detail_from_error(error).SerializeToString()


def seeds() -> list[bytes]:
    """Valid inputs of every kind, and some that are nearly valid."""
    ids = wire.pack_tokens(_TEXT[:4])
    curve = np.array([0, 1, 1.5, 2], "<f4").tobytes()
    chain = wire.draft_to_proto(Draft.chain([5, 6, 7], [0.5, 0.5, 0.25], wire.DraftSource.SESSION, 3))
    tree = types_pb2.Draft()
    tree.CopyFrom(chain)
    tree.parents = np.array([-1, -1, 0], "<i4").tobytes()
    per_token, by_curve = types_pb2.VerifyCost(per_token=0.05), types_pb2.VerifyCost()
    by_curve.curve.cost = curve
    open_ = pb.OpenSessionRequest(
        namespace="a/b",
        tokenizer="xxh3:9f",
        prompt_token_ids=ids,
        output_token_ids=ids[:4],
        labels={"agent": "sql"},
        reads=["a"],
        verify_cost=by_curve,
        session_id="c",
    )
    step = pb.StepRequest(
        session_id="a",
        seq=1,
        new_token_ids=ids,
        at=2,
        max_draft_tokens=8,
        verify_cost=per_token,
        tree=pb.TREE_MODE_AUTO,
        verified=pb.Verified(width=3, accepted=2, source=types_pb2.DRAFT_SOURCE_SESSION),
    )
    plain = pb.StepRequest(session_id="b", new_token_ids=ids, max_draft_tokens=8)
    append = pb.AppendContextRequest(session_id="a", seq=2, token_ids=ids, at=6)
    output = pb.OutputItem(
        token_ids=ids, prompt_token_ids=ids, labels={"agent": "x"}, ttl_seconds=60, segment_lens=[1, 3]
    )
    outputs = pb.AddOutputsRequest(namespace="a", outputs=[output, pb.OutputItem(token_ids=ids, corpus=True)])
    detail = types_pb2.ErrorDetail(
        code=types_pb2.ERROR_CODE_APPEND_GAP, message="a gap", expected="3", got="5", remedy="append"
    )
    kinds: dict[type[Message], list[Message]] = {
        types_pb2.Draft: [chain, tree, types_pb2.Draft()],
        types_pb2.VerifyCost: [per_token, by_curve],
        pb.Verified: [pb.Verified(width=2, accepted=1)],
        types_pb2.ErrorDetail: [detail],
        pb.OpenSessionRequest: [open_],
        pb.StepRequest: [step, plain],
        pb.AppendContextRequest: [append],
        pb.AddOutputsRequest: [outputs],
        pb.StreamRequest: [
            pb.StreamRequest(id=1, open=open_),
            pb.StreamRequest(id=2, steps=pb.StepBatch(items=[step, plain])),
            pb.StreamRequest(id=300, steps=pb.StepBatch(items=[plain])),
            pb.StreamRequest(id=3, append_context=append),
            pb.StreamRequest(id=4, close=pb.CloseSessionRequest(session_id="a", discard=True)),
            pb.StreamRequest(id=5),
        ],
    }
    numbers = {message_type: number for number, (message_type, _) in enumerate(KINDS)}
    return [
        bytes([numbers[message_type]]) + message.SerializeToString()
        for message_type, messages in kinds.items()
        for message in messages
    ]

"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from suffixsvc_openai.app.callers import Speaker, caller_of, texts_of
from suffixsvc_openai.app.responding import Responder
from suffixsvc_openai.app.service import Service
from suffixsvc_openai.protocol.chat_request import ChatRequest
from suffixsvc_openai.protocol.envelope import Envelope
from suffixsvc_openai.protocol.errors import unsupported


@dataclass(frozen=True, slots=True)
class MessageChoice:
    """An element of ``choices``."""

    index: int

    def begin(self) -> list[dict[str, Any]]:
        """See the protocol."""
        return [self._chunk({"role": "assistant", "content": "", "refusal": None}, None)]

    def add(self, text: str) -> list[dict[str, Any]]:
        """See the protocol."""
        return [self._chunk({"content": text}, None)]

    def end(self, reason: str) -> list[dict[str, Any]]:
        """See the protocol."""
        return [self._chunk({}, reason)]

    def whole(self, text: str, reason: str) -> dict[str, Any]:
        """See the protocol."""
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": self.index, "message": message, "logprobs": None, "finish_reason": reason}

    def _chunk(self, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        return {"index": self.index, "delta": delta, "logprobs": None, "finish_reason": reason}


async def chat_completions(service: Service, request: Request) -> Response:
    """Answer a request. Raises ApiError, ClientGone."""
    principal = service.admit(request)
    body = await service.read(request, ChatRequest)
    service.require_model(body.model)
    body.check()
    _refuse_formats(body)

    def tokens() -> Sequence[tuple[int, ...]]:
        messages = [
            {"role": "system" if each.role == "developer" else each.role, "content": each.content or ""}
            for each in body.messages
        ]
        return [service.engine.tokenize(service.engine.model.chat(messages))]

    speaker = Speaker(texts_of((each.role, each.content) for each in body.messages))
    caller = caller_of(principal, request.headers, body, speaker)
    call = await service.start(request, body, caller, tokens, limit=body.limit, param="messages")
    envelope = Envelope("chatcmpl", "chat.completion", service.model, service.fingerprint)
    choices = [MessageChoice(index) for index in range(body.n or 1)]
    return await Responder(service, body, envelope, chunk=".chunk").respond(request, call, choices)


def _refuse_formats(body: ChatRequest) -> None:
    if body.tools and body.tool_choice != "none":
        raise unsupported("tools")
    if body.response_format is not None and body.response_format.get("type") != "text":
        raise unsupported("response_format")

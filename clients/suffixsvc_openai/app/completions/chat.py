"""``POST /v1/chat/completions``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from fastapi import Request
from fastapi.responses import Response

from suffixsvc_openai.app.answers.responding import respond
from suffixsvc_openai.app.completions.choices_writer import ChoicesWriter
from suffixsvc_openai.app.completions.message_choice import MessageChoice
from suffixsvc_openai.app.http.callers import Speaker, caller_of
from suffixsvc_openai.app.http.request_log import note_response
from suffixsvc_openai.app.service import Service
from suffixsvc_openai.chat.history import check_calls
from suffixsvc_openai.chat.turn import ChatTurn
from suffixsvc_openai.engine.call import Call
from suffixsvc_openai.engine.plans import Prompt
from suffixsvc_openai.protocol.chat_request import ChatRequest
from suffixsvc_openai.protocol.envelope import Envelope
from suffixsvc_openai.protocol.errors import invalid


async def chat_completions(service: Service, request: Request) -> Response:
    """Answer a request. Raises ApiError, ClientGone."""
    call, writer, stream = await _start(service, request)
    return await respond(service.engine, request, call, writer, stream=stream)


async def _start(service: Service, request: Request) -> tuple[Call, ChoicesWriter, bool]:
    """Start the answers; the request is not kept longer. Returns their call and writer, and ``stream``."""
    principal = service.admit(request)
    async with service.reading(request, ChatRequest, principal) as (body, _):
        service.require_model(body.model)
        body.check()
        turn = await asyncio.to_thread(_turn, body)  # a conversation may be long
        messages = ((each.role, each.content) for each in body.messages)
        speaker = Speaker.of(messages, (tool["function"]["name"] for tool in turn.tools))
        caller = caller_of(principal, request.headers, body, speaker)
        chat = service.chat

        def prompts() -> Sequence[Prompt]:
            return [replace(chat.prompt(turn), prediction=_predicted(service, body))]

        call = await service.start(
            request, body, caller, prompts, limit=body.limit, param="messages", compiles=turn.binds
        )
    envelope = Envelope("chatcmpl", "chat.completion", service.model, service.fingerprint)
    note_response(request, envelope.id)
    choices = [
        MessageChoice(index, chat.reader(turn, plan.prompt_ids)) for index, plan in enumerate(call.plans)
    ]
    writer = ChoicesWriter(service.engine, call, body, envelope, choices, chunk=".chunk")
    return call, writer, bool(body.stream)


def _predicted(service: Service, body: ChatRequest) -> tuple[int, ...]:
    """Return the tokens of the prediction, in which special tokens are not recognised."""
    if body.prediction is None:
        return ()
    room = service.engine.context_size
    tokens = service.engine.tokenize(body.prediction.content, plain=True)
    if len(tokens) > room:
        raise invalid("prediction.content", f"have at most {room} tokens", got=f"{len(tokens)} or more")
    return tokens


def _turn(body: ChatRequest) -> ChatTurn:
    """Return the turn that is asked for. Raises ApiError, MessageError, ToolError."""
    messages = [message.model_dump(exclude_none=True) for message in body.messages]
    check_calls(messages)
    return ChatTurn.of(
        messages,
        tools=body.tools,
        tool_choice=body.tool_choice,
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=body.response_format,
        variables=body.chat_template_kwargs,
    )

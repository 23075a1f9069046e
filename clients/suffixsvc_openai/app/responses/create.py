"""``POST /v1/responses``."""

from __future__ import annotations

from functools import partial

from fastapi import Request
from fastapi.responses import Response

from suffixsvc_openai.app.answers.answer import Answer
from suffixsvc_openai.app.answers.responding import respond
from suffixsvc_openai.app.http.body_memory import SHORT_BODY_BYTES
from suffixsvc_openai.app.http.callers import Speaker, caller_of
from suffixsvc_openai.app.http.request_log import note_response
from suffixsvc_openai.app.responses.conversation import conversation_of, in_own_terms
from suffixsvc_openai.app.responses.truncation import truncated_prompt
from suffixsvc_openai.app.responses.writer import ResponseWriter
from suffixsvc_openai.app.service import Service
from suffixsvc_openai.engine.call import Call
from suffixsvc_openai.engine.plans import Prompt
from suffixsvc_openai.responses.document import Document
from suffixsvc_openai.responses.request import ResponsesRequest


async def create_response(service: Service, request: Request) -> Response:
    """Answer a request. Raises ApiError, ClientGone."""
    call, writer, stream = await _start(service, request)
    return await respond(service.engine, request, call, writer, stream=stream)


async def _start(service: Service, request: Request) -> tuple[Call, ResponseWriter, bool]:
    """Start the answer; the conversation is not kept longer. Returns its call, its writer and ``stream``."""
    principal = service.admit(request)
    async with service.reading(request, ResponsesRequest, principal) as (body, held):
        service.require_model(body.model)
        body.check()
        asked = await conversation_of(body, service.responses, principal, held)
        turn, chat = asked.turn, service.chat
        messages = ((each["role"], each["content"]) for each in turn.messages)
        speaker = Speaker.of(messages, (tool["function"]["name"] for tool in turn.tools))
        caller = caller_of(principal, request.headers, body, speaker)

        def prompt() -> Prompt:
            if body.truncation != "auto":
                return chat.prompt(turn)
            return truncated_prompt(chat.prompt, turn, service.engine.context_size, body.max_output_tokens)

        prompts = partial(in_own_terms, lambda: [prompt()])
        call = await service.start(
            request,
            body,
            caller,
            prompts,
            limit=body.max_output_tokens,
            param="input",
            compiles=turn.binds,
        )
        large = held.size > SHORT_BODY_BYTES
    keep = None if asked.inputs is None else partial(service.responses.keep, principal, asked.inputs)
    answer, document = Answer(service.engine, call.plans[0]), Document.of(body, large=large)
    note_response(request, document.id)
    reader = chat.reader(turn, call.plans[0].prompt_ids)
    writer = ResponseWriter(answer, document, reader, keep)
    return call, writer, bool(body.stream)

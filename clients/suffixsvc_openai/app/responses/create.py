"""``POST /v1/responses``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import Response

from suffixsvc.errors import InvalidInputError
from suffixsvc_openai.app.answers.answer import Answer
from suffixsvc_openai.app.answers.responding import respond
from suffixsvc_openai.app.http.callers import Speaker, caller_of
from suffixsvc_openai.app.responses.truncation import truncated_prompt
from suffixsvc_openai.app.responses.writer import ResponseWriter
from suffixsvc_openai.app.service import Service
from suffixsvc_openai.chat.turn import ChatTurn
from suffixsvc_openai.engine.plans import Prompt
from suffixsvc_openai.protocol.errors import ApiError
from suffixsvc_openai.responses.document import Document
from suffixsvc_openai.responses.items import checked_items, messages_of
from suffixsvc_openai.responses.request import ResponsesRequest, own_field
from suffixsvc_openai.responses.stored import MissingResponseError, ResponseStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Conversation:
    """What a request asks.

    Attributes:
        inputs: its own items, with those that it refers to.
        turn: the whole conversation.
    """

    inputs: list[dict[str, Any]]
    turn: ChatTurn


async def create_response(service: Service, request: Request) -> Response:
    """Answer a request. Raises ApiError, ClientGone."""
    principal = service.admit(request)
    async with service.reading(request, ResponsesRequest, principal) as body:
        service.require_model(body.model)
        body.check()
        # in a thread: a conversation may be long
        asked = await asyncio.to_thread(_conversation, body, service.responses, principal)
        turn, chat = asked.turn, service.chat
        messages = ((each["role"], each["content"]) for each in turn.messages)
        speaker = Speaker.of(messages, (tool["function"]["name"] for tool in turn.tools))
        caller = caller_of(principal, request.headers, body, speaker)

        def prompt() -> Prompt:
            if body.truncation != "auto":
                return chat.prompt(turn)
            return truncated_prompt(chat.prompt, turn, service.engine.context_size, body.max_output_tokens)

        prompts = partial(_in_own_terms, lambda: [prompt()])
        call = await service.start(
            request, body, caller, prompts, limit=body.max_output_tokens, param="input", compiles=turn.binds
        )
    keep = partial(service.responses.keep, principal, asked.inputs) if body.stored else None
    answer = Answer(service.engine, call.plans[0])
    writer = ResponseWriter(answer, Document(body), chat.reader(turn, call.plans[0].prompt_ids), keep)
    return await respond(service.engine, request, call, writer, stream=bool(body.stream))


def _conversation(body: ResponsesRequest, store: ResponseStore, principal: str) -> _Conversation:
    inputs = _resolved(checked_items(body.input), store, principal)
    before = _history(body.previous_response_id, store, principal)
    messages = messages_of([*before, *inputs], body.instructions)
    turn = _in_own_terms(lambda: ChatTurn.of(messages, **body.chat_fields))
    return _Conversation(inputs, turn)


def _history(response_id: str | None, store: ResponseStore, principal: str) -> list[dict[str, Any]]:
    """Return the items of a response and those before it."""
    if response_id is None:
        return []
    try:
        found = store.history(principal, response_id)
    except MissingResponseError as error:
        raise ApiError(
            HTTPStatus.BAD_REQUEST,
            f"Previous response with id '{error.id[:100]}' not found",
            param="previous_response_id",
            code="previous_response_not_found",
            remedy="Responses are kept in memory, the most recently used ones: send the whole conversation.",
        ) from None
    return [item for stored in found for item in stored.items]


def _resolved(items: list[dict[str, Any]], store: ResponseStore, principal: str) -> list[dict[str, Any]]:
    """Return the items, with those that references name."""
    names = [item["id"] for item in items if item["type"] == "item_reference"]
    if not names:
        return items
    found = store.items(principal, names)
    seen: set[str] = set()
    for name in names:
        if name in seen:  # a prompt has no more text than what is stored
            raise ApiError(
                HTTPStatus.BAD_REQUEST,
                f"Duplicate item found with id '{name[:100]}'",
                param="input",
                remedy="Refer to an item once.",
            )
        seen.add(name)
        if name not in found:
            raise ApiError(
                HTTPStatus.NOT_FOUND,
                f"Item with id '{name[:100]}' not found",
                param="input",
                remedy="Items are kept in memory, of the most recently used responses whose store is true: "
                "send the item itself.",
            )
    return [found[item["id"]] if item["type"] == "item_reference" else item for item in items]


def _in_own_terms(make: Callable[[], T]) -> T:
    """Call a function of the chat; its errors name fields of this API."""
    try:
        return make()
    except (ApiError, InvalidInputError) as error:
        param: str | None = getattr(error, "param", None)
        if not param:
            raise
        own = own_field(param)
        status = error.status if isinstance(error, ApiError) else HTTPStatus.BAD_REQUEST
        raise ApiError(status, str(error).replace(param, own), param=own) from None

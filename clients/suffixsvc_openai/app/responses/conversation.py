"""Conversation of a request: its own items, and the stored ones that it continues or refers to.

A request of a hundred bytes may continue a long conversation, so what it takes from the store counts against
the memory of bodies before it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

from suffixsvc.errors import InvalidInputError
from suffixsvc_openai.app.http.body_memory import HeldBody
from suffixsvc_openai.chat.turn import ChatTurn
from suffixsvc_openai.protocol.errors import ApiError, invalid, overloaded
from suffixsvc_openai.protocol.generation_request import MAX_MESSAGES
from suffixsvc_openai.responses.items import checked_items, messages_of
from suffixsvc_openai.responses.request import ResponsesRequest, own_field
from suffixsvc_openai.responses.stored import (
    MissingResponseError,
    ResponseStore,
    StoredItems,
    StoredResponse,
    items_of,
)

T = TypeVar("T")
Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a request asks.

    Attributes:
        inputs: its own items, with those that it refers to; None if the response is not stored.
        turn: the whole conversation.
    """

    inputs: StoredItems | None
    turn: ChatTurn


@dataclass(frozen=True, slots=True)
class _Found:
    """Items of a request, and stored responses that are not read yet.

    Attributes:
        items: its own ones.
        names: ids of the items that it refers to.
        owners: the responses that have them.
        before: the responses that it follows, the first of the conversation first.
    """

    items: list[Item]
    names: list[str]
    owners: Sequence[StoredResponse]
    before: Sequence[StoredResponse]


async def conversation_of(
    body: ResponsesRequest, store: ResponseStore, principal: str, held: HeldBody
) -> Conversation:
    """Return the conversation of a request, made in a thread: it may be long.

    Args:
        body: the request.
        store: has the responses that it names.
        principal: of the request.
        held: counts what is read from the store.

    Raises:
        ApiError: 400, 404, or 503 if there is no memory for what is stored.
    """
    found = await asyncio.to_thread(_find, body, store, principal)
    if not held.add_stored(sum(each.read_size for each in (*found.owners, *found.before))):
        raise overloaded()
    return await asyncio.to_thread(_read, body, found)


def _find(body: ResponsesRequest, store: ResponseStore, principal: str) -> _Found:
    items = checked_items(body.input)
    names = [item["id"] for item in items if item["type"] == "item_reference"]
    owners = store.owners(principal, names)
    return _Found(items, names, owners, _history(body.previous_response_id, store, principal))


def _read(body: ResponsesRequest, found: _Found) -> Conversation:
    inputs = _resolved(found)
    before = [item for stored in found.before for item in stored.items]
    if len(before) + len(inputs) > MAX_MESSAGES:
        raise invalid(
            "input",
            f"have at most {MAX_MESSAGES} items, with those of the responses that it follows",
            got=f"{len(inputs)} items after {len(before)} stored ones",
            remedy="Send the part of the conversation that matters, without previous_response_id.",
        )
    messages = messages_of([*before, *inputs], body.instructions)
    turn = in_own_terms(lambda: ChatTurn.of(messages, **body.chat_fields))
    return Conversation(StoredItems.of(inputs) if body.stored else None, turn)


def _history(response_id: str | None, store: ResponseStore, principal: str) -> list[StoredResponse]:
    """Return a response and those before it."""
    if response_id is None:
        return []
    try:
        return store.history(principal, response_id)
    except MissingResponseError as error:
        raise ApiError(
            HTTPStatus.BAD_REQUEST,
            f"Previous response with id '{error.id[:100]}' not found",
            param="previous_response_id",
            code="previous_response_not_found",
            remedy="Responses are kept in memory, the most recently used ones: send the whole conversation.",
        ) from None


def _resolved(asked: _Found) -> list[Item]:
    """Return the items of a request, with those that references name."""
    found = items_of(asked.owners, asked.names)
    seen: set[str] = set()
    for name in asked.names:
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
    return [found[item["id"]] if item["type"] == "item_reference" else item for item in asked.items]


def in_own_terms(make: Callable[[], T]) -> T:
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

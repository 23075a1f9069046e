"""Stored responses: what ``previous_response_id``, ``item_reference`` and ``GET /v1/responses/ID`` find.

Each principal has its own, in memory, bounded in bytes; the least recently used are dropped, beyond the bytes
of all principals those of the one that has most. A response records the one that it follows, not the
conversation: the history of a response is found along these links.
Texts are kept as JSON, so that their size is known.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from suffixsvc_openai.protocol.json_values import count_values, parsed_bytes

#: bytes that the responses of one principal may take
MAX_BYTES: Final = 64 << 20
#: bytes that the responses of all principals may take
MAX_TOTAL_BYTES: Final = 1 << 30
#: bytes of a response besides its texts: the objects of Python that hold it
_OVERHEAD_BYTES: Final = 1024
_ID_BYTES: Final = 400
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class StoredItems:
    """Input items of a response as they are stored.

    Attributes:
        text: JSON of their list.
        ids: their ids.
        read_size: bytes that they take once they are read, at most.
    """

    text: bytes
    ids: tuple[str, ...]
    read_size: int

    @classmethod
    def of(cls, items: Sequence[Mapping[str, Any]]) -> StoredItems:
        """Store items, which have ids."""
        text = _json(items)
        return cls(text, tuple(item["id"] for item in items), _read_size(text))


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response and what it answered.

    Attributes:
        id: of the response.
        previous_id: id of the response that it follows; None for the first of a conversation.
        response: JSON of the response.
        input_items: JSON of the list of its own input items, without those of the responses before it.
        item_ids: ids of the input items and the items of the output.
        read_size: bytes that its items take once they are read, at most.
    """

    id: str
    previous_id: str | None
    response: bytes
    input_items: bytes
    item_ids: tuple[str, ...]
    read_size: int

    @classmethod
    def of(cls, response: Mapping[str, Any], inputs: StoredItems) -> StoredResponse:
        """Store a response, whose items have ids."""
        text = _json(response)
        return cls(
            response["id"],
            response["previous_response_id"],
            text,
            inputs.text,
            (*inputs.ids, *(item["id"] for item in response["output"])),
            inputs.read_size + _read_size(text),
        )

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        texts = len(self.response) + len(self.input_items)
        return texts + _OVERHEAD_BYTES + _ID_BYTES * len(self.item_ids)

    @property
    def body(self) -> dict[str, Any]:
        """The response."""
        found: dict[str, Any] = json.loads(self.response)
        return found

    @property
    def inputs(self) -> list[dict[str, Any]]:
        """Its own input items."""
        found: list[dict[str, Any]] = json.loads(self.input_items)
        return found

    @property
    def items(self) -> list[dict[str, Any]]:
        """Its input items, then the items of its output."""
        return [*self.inputs, *self.body["output"]]


class MissingResponseError(Exception):
    """A response is not stored.

    Attributes:
        id: of the response.
    """

    def __init__(self, missing: str) -> None:
        super().__init__(missing)
        self.id = missing


@dataclass(slots=True)
class _Shelf:
    """The responses of one principal, the least recently used first."""

    responses: OrderedDict[str, StoredResponse] = field(default_factory=OrderedDict)
    #: id of an item -> ids of the responses that have it, the newest last
    owners: dict[str, dict[str, None]] = field(default_factory=dict)
    size: int = 0


class ResponseStore:
    """The stored responses of all principals. Thread-safe.

    Args:
        max_bytes: limit of each principal. A larger response is not stored.
        max_total: limit of all principals together, at least that of each.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, max_total: int = MAX_TOTAL_BYTES) -> None:
        self._max_bytes, self._max_total, self._size = max_bytes, max_total, 0
        self._lock = threading.Lock()
        self._shelves: dict[str, _Shelf] = {}

    def add(self, principal: str, stored: StoredResponse) -> None:
        """Store a response, and drop the least recently used ones of its principal beyond the limit."""
        if stored.size > self._max_bytes:
            return
        with self._lock:
            shelf = self._shelves.setdefault(principal, _Shelf())
            shelf.responses[stored.id] = stored
            for item_id in stored.item_ids:
                shelf.owners.setdefault(item_id, {})[stored.id] = None
            shelf.size += stored.size
            self._size += stored.size
            while shelf.size > self._max_bytes:
                self._drop(shelf, next(iter(shelf.responses)))
            while self._size > self._max_total:
                largest = max(self._shelves, key=lambda each: self._shelves[each].size)
                self._drop(self._shelves[largest], next(iter(self._shelves[largest].responses)))
                if not self._shelves[largest].responses:
                    del self._shelves[largest]

    def keep(self, principal: str, inputs: StoredItems, response: Mapping[str, Any]) -> None:
        """Store a response and its own input items."""
        self.add(principal, StoredResponse.of(response, inputs))

    def get(self, principal: str, response_id: str) -> StoredResponse:
        """Return a response. Raises MissingResponseError."""
        with self._lock:
            return self._used(self._shelf(principal), response_id)

    def history(self, principal: str, response_id: str) -> list[StoredResponse]:
        """Return a response and those that it follows, the first of the conversation first.

        Raises:
            MissingResponseError: the response or one that it follows is not stored.
        """
        found: list[StoredResponse] = []
        with self._lock:
            shelf = self._shelf(principal)
            at: str | None = response_id
            while at is not None:
                found.append(self._used(shelf, at))
                at = found[-1].previous_id
            found.reverse()
            for stored in found:  # of a conversation, the first response is dropped first
                shelf.responses.move_to_end(stored.id)
        return found

    def owners(self, principal: str, item_ids: Iterable[str]) -> list[StoredResponse]:
        """Return the responses that have items, also as their input: of each item the newest one, if any."""
        wanted = set(item_ids)
        with self._lock:
            shelf = self._shelf(principal)
            owners = {next(reversed(shelf.owners[each])) for each in wanted if each in shelf.owners}
            return [self._used(shelf, owner) for owner in owners]

    def delete(self, principal: str, response_id: str) -> None:
        """Delete a response. Raises MissingResponseError."""
        with self._lock:
            shelf = self._shelf(principal)
            self._used(shelf, response_id)
            self._drop(shelf, response_id)

    def _shelf(self, principal: str) -> _Shelf:
        return self._shelves.get(principal) or _Shelf()

    @staticmethod
    def _used(shelf: _Shelf, response_id: str) -> StoredResponse:
        if response_id not in shelf.responses:
            raise MissingResponseError(response_id)
        shelf.responses.move_to_end(response_id)
        return shelf.responses[response_id]

    def _drop(self, shelf: _Shelf, response_id: str) -> None:
        stored = shelf.responses.pop(response_id)
        shelf.size -= stored.size
        self._size -= stored.size
        for item_id in set(stored.item_ids):
            del shelf.owners[item_id][response_id]
            if not shelf.owners[item_id]:
                del shelf.owners[item_id]


def items_of(owners: Iterable[StoredResponse], item_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return items of responses by id, without those that no response has."""
    wanted = set(item_ids)
    return {item["id"]: item for stored in owners for item in stored.items if item["id"] in wanted}


def _read_size(text: bytes) -> int:
    return len(text) + parsed_bytes(text, count_values(text, len(text)))


def _json(value: Any) -> bytes:
    # escapes of unpaired surrogates stay escapes: they have no UTF-8
    return _ENCODER.encode(value).encode()

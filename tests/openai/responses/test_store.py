"""Stored responses: bounded in bytes, apart for each principal, found along their links."""

from __future__ import annotations

from typing import Any

import pytest

from suffixsvc_openai.responses.stored import (
    MissingResponseError,
    ResponseStore,
    StoredItems,
    StoredResponse,
    items_of,
)


def stored(name: str, previous: str | None = None, text: str = "") -> StoredResponse:
    message = {"type": "message", "id": f"msg_{name}", "role": "assistant", "content": text}
    response: dict[str, Any] = {
        "id": f"resp_{name}",
        "previous_response_id": previous and f"resp_{previous}",
        "output": [message],
    }
    return StoredResponse.of(
        response, StoredItems.of([{"type": "message", "id": f"in_{name}", "role": "user"}])
    )


def ids(found: list[StoredResponse]) -> list[str]:
    return [each.id for each in found]


def items(store: ResponseStore, principal: str, item_ids: list[str]) -> dict[str, dict[str, Any]]:
    return items_of(store.owners(principal, item_ids), item_ids)


def has(store: ResponseStore, name: str, principal: str = "p") -> bool:
    """Whether a response is stored; makes it a used one."""
    try:
        return store.get(principal, f"resp_{name}").id == f"resp_{name}"
    except MissingResponseError:
        return False


def test_a_response_and_its_items_are_found() -> None:
    store = ResponseStore()
    store.add("p", stored("a", text="\ud800 \u00e9"))
    found = store.get("p", "resp_a")
    assert [item["id"] for item in found.items] == ["in_a", "msg_a"]
    assert found.body["output"][0]["content"] == "\ud800 \u00e9"
    found_items = items(store, "p", ["in_a", "msg_b"])
    assert list(found_items) == ["in_a"]
    assert found_items["in_a"]["role"] == "user"


def test_principals_do_not_see_each_other() -> None:
    store = ResponseStore()
    store.add("p", stored("a"))
    assert not has(store, "a", "q")
    assert not items(store, "q", ["msg_a"])
    with pytest.raises(MissingResponseError):
        store.history("q", "resp_a")
    with pytest.raises(MissingResponseError):
        store.delete("q", "resp_a")
    store.add("q", stored("b", previous="a"))
    with pytest.raises(MissingResponseError) as caught:
        store.history("q", "resp_b")
    assert caught.value.id == "resp_a"


def test_the_history_is_found_along_the_links() -> None:
    store = ResponseStore()
    for name, previous in (("a", None), ("b", "a"), ("x", None), ("c", "b"), ("d", "b")):
        store.add("p", stored(name, previous))
    assert ids(store.history("p", "resp_c")) == ["resp_a", "resp_b", "resp_c"]
    assert ids(store.history("p", "resp_d")) == ["resp_a", "resp_b", "resp_d"]
    store.delete("p", "resp_a")
    with pytest.raises(MissingResponseError) as caught:
        store.history("p", "resp_d")
    assert caught.value.id == "resp_a"


def test_the_least_recently_used_are_dropped() -> None:
    one = stored("a").size
    store = ResponseStore(3 * one)
    for name in "abc":
        store.add("p", stored(name))
    store.get("p", "resp_a")
    items(store, "p", ["msg_b"])
    store.add("p", stored("d"))
    assert [name for name in "abcd" if has(store, name)] == ["a", "b", "d"]
    assert not items(store, "p", ["msg_c"])
    store.add("q", stored("e"))  # a limit for each
    assert has(store, "a")


def test_beyond_the_bytes_of_all_the_principal_with_most_loses_its_oldest() -> None:
    one = stored("a").size
    store = ResponseStore(4 * one, max_total=5 * one)
    for name in "abc":
        store.add("p", stored(name))
    store.add("q", stored("d"))
    store.add("r", stored("e"))
    for name, principal in (("f", "r"), ("g", "s")):
        store.add(principal, stored(name))
    assert [name for name in "abc" if has(store, name)] == ["c"]
    assert has(store, "d", "q")
    assert has(store, "e", "r")
    assert has(store, "f", "r")
    assert has(store, "g", "s")
    store.delete("r", "resp_e")  # what is deleted leaves room
    store.add("t", stored("h"))
    assert has(store, "f", "r")
    assert has(store, "c")


def test_a_conversation_loses_its_first_response_first() -> None:
    sizes = [stored("a").size, stored("b", "a").size, stored("c", "b").size]
    store = ResponseStore(sum(sizes))
    for name, previous in (("a", None), ("b", "a"), ("c", "b")):
        store.add("p", stored(name, previous))
    store.history("p", "resp_c")
    store.add("p", stored("d"))
    assert not has(store, "a")
    assert has(store, "b")


def test_a_response_beyond_the_limit_is_not_stored() -> None:
    store = ResponseStore(10_000)
    store.add("p", stored("a"))
    store.add("p", stored("b", text="x" * 10_000))
    assert has(store, "a")
    assert not has(store, "b")


def test_deleting_frees_the_bytes() -> None:
    store = ResponseStore(2 * stored("a").size)
    for name in "ab":
        store.add("p", stored(name))
    store.delete("p", "resp_b")
    assert not items(store, "p", ["msg_b"])
    with pytest.raises(MissingResponseError):
        store.delete("p", "resp_b")
    store.add("p", stored("c"))
    assert has(store, "a")


@pytest.mark.parametrize("deleted", ["a", "b"])
def test_an_item_is_found_as_long_as_a_response_has_it(deleted: str) -> None:
    """A response that referred to an item once took it away when it was deleted."""
    store = ResponseStore()
    first = stored("a", text="kept")
    message = first.items[-1]
    store.add("p", first)
    response = {"id": "resp_b", "previous_response_id": None, "output": [message]}
    store.add("p", StoredResponse.of(response, StoredItems.of([message, message])))
    store.delete("p", f"resp_{deleted}")
    assert items(store, "p", ["msg_a"]) == {"msg_a": message}
    store.delete("p", "resp_a" if deleted == "b" else "resp_b")
    assert not items(store, "p", ["msg_a"])

"""Private sessions of a follower: nothing of them reaches the service."""

from __future__ import annotations

from pathlib import Path

import pytest

from suffixsvc import Policies, Policy, SuffixCache
from suffixsvc.errors import ServiceUnavailableError
from suffixsvc.service.handlers import Handlers
from suffixsvc_follower import FollowState, connect
from support.following import CONFIG, Connect, logged
from support.serving import eventually, serving, socket_dir

PATH = "acme/sql"
SECRET = list(range(90, 100))


def test_no_call_is_made_for_a_private_session(
    cache: SuffixCache, follow: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    find = Handlers.of

    def recorded(self: Handlers, name: str) -> object:
        called.append(name)
        return find(self, name)

    monkeypatch.setattr(Handlers, "of", recorded)
    opened: list[object] = []
    open_session = Handlers.open_session
    monkeypatch.setattr(
        Handlers,
        "open_session",
        lambda self, request, caller: opened.append(request) or open_session(self, request, caller),
    )
    follower = follow(PATH)
    assert follower.wait(PATH, 60)
    session = follower.namespace(PATH).open_session([1], SECRET[:5], private=True)
    session.step(SECRET[5:])
    session.append_context(SECRET)
    with follower.namespace(PATH).open_session([2]) as sibling:
        assert len(sibling.step(SECRET[:3])) == 0
    assert session.close() is None
    # the sibling's session was sent after it, so that the private one's would have arrived
    eventually(lambda: len(logged(cache, PATH)) == 1, "the sibling's output is stored")
    assert len(opened) == 1
    [stored] = cache._parts.store.scan(PATH)
    assert stored.output.token_ids.tolist() == SECRET[:3]


def test_a_private_session_is_refused_where_the_service_would_draft(cache: SuffixCache) -> None:
    with (
        socket_dir() as folder,
        serving(cache, f"unix:{folder / 's.sock'}", max_followers=0) as (_, address),
        connect(address, config=CONFIG) as backend,
    ):
        eventually(lambda: backend.state is FollowState.REFUSED, "it is refused")
        with pytest.raises(ServiceUnavailableError, match="private"):
            backend.namespace(PATH).open_session([1], private=True)


def test_a_policy_of_no_store_makes_sessions_of_followers_private(tmp_path: Path) -> None:
    """The service says so when it opens them."""
    policies = Policies({"quiet": Policy(no_store=True)})
    with (
        SuffixCache(tmp_path / "d", background=False, policies=policies) as cache,
        socket_dir() as folder,
        serving(cache, f"unix:{folder / 's.sock'}") as (_, address),
        connect(address, config=CONFIG) as follower,
    ):
        session = follower.namespace("quiet").open_session([1])
        session.step(SECRET)
        sibling = follower.namespace("quiet").open_session([1])
        assert len(sibling.step(SECRET[:5])) == 0
        assert session.step(SECRET[:5], max_draft_tokens=3).token_ids.tolist() == SECRET[5:8]
        assert session.close() is None
        assert sibling.close() is None
        assert cache.stats().outputs == 0

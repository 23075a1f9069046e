"""Followers and their rights: whom the service drafts for, and what is left when a right is taken away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from suffixsvc import SuffixCache
from suffixsvc.errors import PermissionDeniedError, UnauthenticatedError
from suffixsvc_client import ClientSession
from suffixsvc_follower import Follower, FollowerConfig, connect
from suffixsvc_follower.session import FollowerSession
from support.access import ControlledService
from support.serving import eventually

SECRET = list(range(100, 140))
PATH = "acme/sql"
READ = f'[principals."alice"]\nread = ["{PATH}"]\nwrite = ["{PATH}"]\n'
FOLLOW = f'[principals."alice"]\nfollow = ["{PATH}"]\nwrite = ["{PATH}"]\n'


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ControlledService]:
    with SuffixCache(tmp_path / "data") as cache:
        cache.namespace(PATH).add_output(SECRET, [1, 2, 3])
        cache.seal(PATH)
        with ControlledService(tmp_path, ("alice", "bob"), FOLLOW).run(cache) as service:
            yield service


def follower_of(service: ControlledService, folder: Path, principal: str = "alice") -> Follower:
    config = FollowerConfig(client=service.config(principal), segment_cache=folder, connect_seconds=60.0)
    found = connect(service.address, config=config)
    assert isinstance(found, Follower)
    return found


def drafts(session: FollowerSession | ClientSession) -> list[int]:
    return session.step(SECRET[:3]).token_ids.tolist()


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.seg")) if folder.exists() else []


def test_without_follow_the_service_drafts(service: ControlledService, tmp_path: Path) -> None:
    service.set_policy(READ)
    with follower_of(service, tmp_path / "cache") as follower:
        session = follower.namespace(PATH).open_session([1, 2, 3])
        assert isinstance(session, ClientSession)
        assert drafts(session)[:2] == SECRET[3:5]
        assert session.close() is not None
        with pytest.raises(PermissionDeniedError):
            follower.namespace(PATH).wait(60)
        assert isinstance(follower.namespace(PATH).refusal, PermissionDeniedError)
        assert follower.refusal is None
        assert files(tmp_path / "cache") == []
        own = follower.namespace("alice/own").open_session([1])
        assert isinstance(own, FollowerSession)
        own.close(commit=False)


def test_a_right_that_is_granted_later_is_used(service: ControlledService, tmp_path: Path) -> None:
    service.set_policy(READ)
    with follower_of(service, tmp_path / "cache") as follower:
        with pytest.raises(PermissionDeniedError):
            follower.namespace(PATH).wait(60)
        service.set_policy(FOLLOW)
        session = follower.namespace(PATH).open_session([1, 2, 3])
        assert isinstance(session, FollowerSession)
        eventually(
            lambda: follower.namespace(PATH).refusal is None and follower.followed(PATH).ready.is_set(),
            "it takes effect",
        )
        session.close(commit=False)


def test_revoking_follow_deletes_what_the_follower_holds(service: ControlledService, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with follower_of(service, folder) as follower:
        assert follower.namespace(PATH).wait(60)
        eventually(
            lambda: files(folder), "it takes effect"
        )  # the folder of the service is for its own user's callers only
        session = follower.namespace(PATH).open_session([1, 2, 3])
        eventually(lambda: not follower.followed(PATH).copy.missing_segments(), "it takes effect")
        assert drafts(session)[:2] == SECRET[3:5]
        service.set_policy(READ)
        eventually(lambda: files(folder) == [], "it takes effect")
        assert follower.followed(PATH).copy.sealed() == []
        again = follower.namespace(PATH).open_session([9, 9])
        assert isinstance(again, ClientSession)
        assert drafts(again)[:2] == SECRET[3:5]  # it may still read
        for each in (session, again):
            each.close(commit=False)


def test_files_of_an_earlier_process_are_deleted(service: ControlledService, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with follower_of(service, folder) as follower:
        assert follower.namespace(PATH).wait(60)
        eventually(lambda: files(folder), "it takes effect")
    service.set_policy(READ)
    with follower_of(service, folder) as follower:
        with pytest.raises(PermissionDeniedError):
            follower.namespace(PATH).wait(60)
        assert files(folder) == []


def test_revoking_the_token_ends_the_stream_and_deletes_the_copies(
    service: ControlledService, tmp_path: Path
) -> None:
    folder = tmp_path / "cache"
    with follower_of(service, folder) as follower:
        assert follower.namespace(PATH).wait(60)
        eventually(lambda: files(folder), "it takes effect")
        session = follower.namespace(PATH).open_session([1, 2, 3])
        service.revoke("alice")
        eventually(lambda: files(folder) == [], "it takes effect")
        assert drafts(session) == []
        eventually(lambda: follower.refusal is not None, "it takes effect")
        assert isinstance(follower.refusal, UnauthenticatedError)
        with pytest.raises(UnauthenticatedError):
            follower.namespace(PATH).open_session([1])
        with pytest.raises(UnauthenticatedError):
            session.close()


def test_followers_of_two_principals_with_one_id_are_unrelated(
    service: ControlledService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from suffixsvc_follower import parts

    monkeypatch.setattr(parts, "uuid4", lambda: "the-same")
    with follower_of(service, tmp_path / "a") as alice, follower_of(service, tmp_path / "b", "bob") as bob:
        alice.namespace("alice/a").add_output([1, 2])
        assert alice.namespace("alice/a").wait(60)
        assert bob.namespace("bob/b").wait(60)
        assert alice.state == bob.state == "following"
        mine = alice.namespace("alice/a").stats()
        assert [each.follower_id for each in mine.followers] == ["the-same"]
        bob.namespace("bob/b").add_output([5, 6, 7])
        eventually(lambda: bob.namespace("bob/b").stats().followers[0].applied_lsn > 0, "it takes effect")


def test_a_follower_learns_nothing_of_live_text_it_may_not_follow(
    service: ControlledService, tmp_path: Path
) -> None:
    with follower_of(service, tmp_path / "b", "bob") as bob, service.client("alice") as alice:
        session = alice.namespace(PATH).open_session([1, 2, 3])
        session.step([200, 201, 202])
        with pytest.raises(PermissionDeniedError):
            bob.namespace(PATH).wait(60)
        assert bob.live_text(PATH) == {}
        service.set_policy(FOLLOW + f'[principals."bob"]\nfollow = ["{PATH}"]\n')
        bob.followed(PATH)
        eventually(lambda: bob.live_text(PATH), "it takes effect")
        [name] = bob.live_text(PATH)
        assert "alice" not in name
        assert name != session.verbs.state.session_id
        session.close(commit=False)

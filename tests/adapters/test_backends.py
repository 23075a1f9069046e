"""What an engine's configuration and the environment say of the cache to draft from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from suffixsvc import SuffixCache
from suffixsvc.errors import (
    InvalidConfigError,
    InvalidNamespaceError,
    LimitExceededError,
    ServiceUnavailableError,
    StoreLockedError,
)
from suffixsvc_adapters import DraftRequest, TrackerConfig
from suffixsvc_adapters.backends import AdapterSettings, open_tracker, read_settings
from suffixsvc_client import SuffixClient
from support.serving import serving, socket_dir

TEXT = [11, 12, 13, 14, 15, 16, 17, 18]


def test_the_environment_and_over_it_the_configuration() -> None:
    environ = {
        "SUFFIXSVC_ADAPTER_NAMESPACE": "acme/a",
        "SUFFIXSVC_ADAPTER_DATA": "/somewhere",
        "SUFFIXSVC_ADAPTER_READS": "acme/b, acme/c",
        "SUFFIXSVC_ADAPTER_VERIFY_COST": "0.5",
        "SUFFIXSVC_ADAPTER_MAX_SEQUENCES": "7",
        "SUFFIXSVC_HOME": "not ours",
    }
    settings = read_settings({"namespace": "acme/x", "idle_seconds": 5}, environ)
    assert settings == AdapterSettings(
        data="/somewhere",
        namespace="acme/x",
        reads=("acme/b", "acme/c"),
        verify_cost=0.5,
        max_sequences=7,
        idle_seconds=5,
    )
    config = settings.override(TrackerConfig(max_draft_tokens=9, max_sequences=1, tree=True))
    assert (config.max_draft_tokens, config.max_sequences, config.verify_cost, config.tree) == (
        9,
        7,
        0.5,
        True,
    )
    assert config.reads == ("acme/b", "acme/c")


@pytest.mark.parametrize(("given", "drafted"), [(None, 9), (4, 4), (9, 9), (40, 9)])
def test_a_draft_is_never_longer_than_the_engine_verifies(given: int | None, drafted: int) -> None:
    config = AdapterSettings(max_draft_tokens=given).override(TrackerConfig(max_draft_tokens=9))
    assert config.max_draft_tokens == drafted
    with pytest.raises(InvalidConfigError, match="max_draft_tokens"):
        AdapterSettings(max_draft_tokens=0).override(config)


@pytest.mark.parametrize(
    ("given", "environ", "says"),
    [
        ({"namspace": "a"}, {}, "settings must be valid at namspace; expected target, .*; got namspace"),
        (
            {},
            {"SUFFIXSVC_ADAPTER_TRAGET": "unix:/x"},
            "SUFFIXSVC_ADAPTER_TRAGET must be valid at traget; expected target, ",
        ),
        ({"verify_cost": "0.1"}, {}, "at verify_cost; expected a valid number; got '0.1'"),
        ({"max_sequences": True}, {}, "at max_sequences; expected a valid integer; got True"),
        ({"reads": "a,b"}, {}, "at reads; expected a valid array; got 'a,b'"),
        ({"namespace": 3}, {}, "at namespace; expected a valid string; got 3"),
        (
            {},
            {"SUFFIXSVC_ADAPTER_MAX_SEQUENCES": "many"},
            "_MAX_SEQUENCES must be valid at max_sequences; expected a valid integer; got 'many'",
        ),
        ({"target": "unix:/x", "data": "/y"}, {}, "target and data must not both be set"),
        ({"step_timeout_s": 0.1}, {}, "step_timeout_s must only be set together with target"),
        ({"mode": "remote"}, {}, "mode must only be set together with target"),
        ({}, {"SUFFIXSVC_ADAPTER_MODE": "near"}, "mode must be one of auto, follow, remote; got 'near'"),
        ([1], {}, "must be a mapping"),
    ],
)
def test_invalid_settings_are_refused(given: Any, environ: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidConfigError, match=says):
        read_settings(given, environ)


def test_a_namespace_is_checked_at_the_start() -> None:
    with pytest.raises(InvalidConfigError, match="at namespace"):
        read_settings({"namespace": "//"}, {})
    with pytest.raises(InvalidNamespaceError):
        AdapterSettings(namespace="//")


def test_a_folder_remembers_and_is_taken_by_one_process_at_a_time(tmp_path: Path) -> None:
    settings = AdapterSettings(data=str(tmp_path / "cache"))
    with open_tracker(settings, TrackerConfig()) as tracker:
        tracker.draft([1, *TEXT], written=len(TEXT))
        with pytest.raises(StoreLockedError):
            open_tracker(settings, TrackerConfig())
    with open_tracker(settings, TrackerConfig()) as tracker:
        assert tracker.draft([2, *TEXT[:3]], written=3).token_ids.tolist() == TEXT[3:]


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of steps in the batched messages of clients that ask for drafts."""
    messages: list[int] = []
    real = SuffixClient.step_many

    def counted(client: SuffixClient, steps: Any) -> Any:
        asking = [given for _, given in steps if given.get("max_draft_tokens")]
        if asking:  # a follower sends its text so, and asks for none
            messages.append(len(asking))
        return real(client, steps)

    monkeypatch.setattr(SuffixClient, "step_many", counted)
    return messages


@pytest.mark.parametrize("mode", [None, "follow", "remote"])
def test_two_rows_are_drafted_from_what_a_service_stores(mode: str | None, messages: list[int]) -> None:
    """In this process without a message, unless the service drafts: then all rows in one."""
    with (
        socket_dir() as folder,
        SuffixCache() as cache,
        serving(cache, f"unix:{folder}/s.sock") as (_, address),
    ):
        settings = AdapterSettings(target=address, mode=mode, step_timeout_s=20.0)
        with open_tracker(settings, TrackerConfig()) as tracker:
            tracker.draft([1, *TEXT], written=len(TEXT))
            tracker.end_all()
            tracker.draft([3, *TEXT], hint="gone", written=1)
            rows = [
                DraftRequest([2, *TEXT[:3]], hint=0, written=3),
                DraftRequest([9, *TEXT[:5]], hint=1, written=5),
            ]
            first, second = tracker.draft_many(rows)
            assert first.token_ids.tolist() == TEXT[3:]
            assert second.token_ids.tolist() == TEXT[5:]
            assert tracker.stats.failures == 0
            assert messages == ([2] if mode == "remote" else [])
        assert cache.namespace("adapters").stats().outputs >= 1


@pytest.mark.parametrize("mode", [None, "remote"])
def test_a_service_that_is_gone_empties_drafts_and_raises_nothing(mode: str | None) -> None:
    rows = [DraftRequest([2, *TEXT[:3]], hint=hint, written=3) for hint in range(2)]
    with socket_dir() as folder:
        settings = AdapterSettings(target=f"unix:{folder}/s.sock", mode=mode, step_timeout_s=0.05)
        with open_tracker(settings, TrackerConfig()) as tracker:
            assert [len(draft) for draft in tracker.draft_many(rows)] == [0, 0]
        with pytest.raises(ServiceUnavailableError):
            open_tracker(replace(settings, mode="follow"), TrackerConfig())


def test_a_service_that_allows_no_followers_drafts_itself() -> None:
    with (
        socket_dir() as folder,
        SuffixCache() as cache,
        serving(cache, f"unix:{folder}/s.sock", max_followers=0) as (_, address),
    ):
        cache.namespace("adapters").add_output(TEXT)
        settings = AdapterSettings(target=address, step_timeout_s=20.0)
        with open_tracker(settings, TrackerConfig()) as tracker:
            assert tracker.draft([2, *TEXT[:3]], written=3).token_ids.tolist() == TEXT[3:]
        with pytest.raises(LimitExceededError):
            open_tracker(replace(settings, mode="follow"), TrackerConfig())

"""Times to live of outputs and of policies while the machine's clock is set."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from limits_testing import add, ids, index_is_log, output

from suffixsvc import Limits, Policies, Policy, SuffixCache
from suffixsvc.errors import InvalidConfigError

YEAR = 365 * 24 * 3600.0
HOURLY = Policies(default=Policy(ttl_seconds=3600))


def set_clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Advance the wall clock."""
    before = time.time
    monkeypatch.setattr(time, "time", lambda: before() + seconds)


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_a_clock_that_steps_forward_deletes_nothing(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression, found by setting the clock of a machine with a running cache ten years ahead: at the next
    expiry every output with a time to live, its own or its policy's, was deleted. Now elapsed time counts, so
    both outputs are retained, and so is one that is written meanwhile."""
    with SuffixCache(None if where == "memory" else tmp_path / "data", policies=HOURLY) as cache:
        kept = cache.namespace("ns").add_outputs([output("ns", 1, ttl_seconds=3600), output("ns", 2)])
        set_clock(monkeypatch, 10 * YEAR)
        assert cache.expire() == 0
        kept += add(cache, "ns", [3])
        set_clock(monkeypatch, -20 * YEAR)
        assert cache.expire() == 0
        assert ids(cache, "ns") == kept
        index_is_log(cache)


def test_a_clock_that_is_wrong_at_the_start_deletes_nothing_before_the_grace_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same at a boot: time without a process cannot be distinguished from a wrong clock. It counts, but
    outputs that are due only because of it are retained for the grace period, whose remainder is in the
    statistics."""
    limits = Limits(expiry_grace_seconds=1800)
    with SuffixCache(tmp_path / "data", policies=HOURLY, limits=limits) as cache:
        kept = cache.namespace("ns").add_outputs([output("ns", 1, ttl_seconds=3600), output("ns", 2)])
        assert cache.stats().expiry_grace_seconds == 0
    set_clock(monkeypatch, 10 * YEAR)
    with SuffixCache(tmp_path / "data", policies=HOURLY, limits=limits) as cache:
        assert 1700 < cache.stats().expiry_grace_seconds <= 1800
        assert cache.expire() == 0
        new = add(cache, "ns", [3])
        assert ids(cache, "ns") == [*kept, *new]
    with SuffixCache(tmp_path / "data", policies=HOURLY, limits=Limits(expiry_grace_seconds=1e-6)) as cache:
        assert cache.expire() == 2, "the clock was not set right: the years passed"
        assert ids(cache, "ns") == new
        index_is_log(cache)


def test_a_new_output_expires_by_its_policy_during_the_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = Policies({"short": Policy(ttl_seconds=1), "long": Policy(ttl_seconds=3600)})
    with SuffixCache(tmp_path / "data", policies=policies) as cache:
        kept = add(cache, "long", [1])
    set_clock(monkeypatch, YEAR)
    with SuffixCache(tmp_path / "data", policies=policies) as cache:
        add(cache, "short", [2])
        deadline = time.monotonic() + 60
        while not cache.expire():
            assert time.monotonic() < deadline
        assert ids(cache, "short") == []
        assert ids(cache, "long") == kept
        assert cache.stats().expiry_grace_seconds > 3000


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "1"])
def test_a_grace_that_is_no_time_is_refused(seconds: object) -> None:
    with pytest.raises(InvalidConfigError, match="expiry_grace_seconds"):
        Limits(expiry_grace_seconds=seconds)  # type: ignore[arg-type]

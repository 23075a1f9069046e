"""Feedback of decode steps: tokens sent, drafted and accepted, and what is learned from them."""

from __future__ import annotations

import pytest
from engine_testing import SQL, write

from suffixsvc import SuffixCache, Verified
from support.engine_parts import native_of


def test_feedback_charges_what_was_sent(cache: SuffixCache) -> None:
    """A driver that sent no token of a draft must not be charged for it."""
    for _ in range(4):
        write(cache, SQL * 3)
    used, unused = (cache.namespace("acme/m").open_session([i]) for i in (1, 2))
    expensive = 0.3
    for i in range(0, 40, 2):
        used.step(SQL[i : i + 2], verify_cost=expensive)
        unused.step(SQL[i : i + 2], verify_cost=expensive, verified=Verified(1, 0))
    # The same tokens at a lower cost: more gain per cost, so the threshold of a drafted token is higher.
    assert native_of(unused).gain > native_of(used).gain


def test_tokens_without_a_draft_are_steps_of_one_token(cache: SuffixCache) -> None:
    """Independent of the length of the draft that an earlier step returned."""

    def gain(path: str, verified: Verified | None) -> float:
        for _ in range(4):
            write(cache, SQL * 3, path)
        session = cache.namespace(path).open_session([1])
        assert len(session.step(SQL[:8], verify_cost=0.0)) > 8
        session.step([7, 8], max_draft_tokens=0)
        session.step(SQL[12:20], max_draft_tokens=0, verified=verified)
        return native_of(session).gain

    assert gain("acme/plain", None) == gain("acme/told", Verified(1, 0))


def test_a_step_costs_no_more_than_the_longest_draft_that_was_asked_for(cache: SuffixCache) -> None:
    curve = [0.0, 1.0, 1.1, 1.2, 50.0, 50.0]

    def gain(path: str, curve: list[float]) -> float:
        for _ in range(4):
            write(cache, SQL * 3, path)
        session = cache.namespace(path).open_session([1])
        assert len(session.step(SQL[:8], 2, verify_cost=curve)) == 2
        session.step([7], 0, verified=Verified(9, 0))
        return native_of(session).gain

    assert gain("acme/long", curve) == gain("acme/short", curve[:4])


@pytest.mark.parametrize("parts", [[1] * 6, [3, 3], [2, 1, 3], [1] * 4, [3, 1], [1, 3], [1]])
def test_a_step_may_be_reported_in_parts(cache: SuffixCache, parts: list[int]) -> None:
    """Tokens that match the last draft, and one more token, are one step of the target, in any number of
    parts."""
    draft, accepted = 5, sum(parts) - 1

    def outcome(path: str, parts: list[int]) -> tuple[float, int, bytes]:
        namespace = cache.namespace(path)
        for _ in range(4):
            write(cache, SQL * 3, path)
        session = namespace.open_session([1])
        assert len(session.step(SQL[:8], draft, verify_cost=0.0)) == draft
        truth = [*SQL[8 : 8 + accepted], 7]
        for n in parts:
            session.step(truth[:n], 0)
            truth = truth[n:]
        session.step([9, 10], 0)
        weights = namespace.learned_weights()
        return native_of(session).gain, namespace.stats().num_accepted_tokens, weights

    assert outcome("acme/parts", parts) == outcome("acme/whole", [accepted + 1])
    assert cache.namespace("acme/parts").stats().num_accepted_tokens == accepted


def test_the_last_part_of_a_step_may_come_with_feedback(cache: SuffixCache) -> None:
    def outcome(path: str, parts: list[tuple[int, Verified | None]]) -> tuple[float, int]:
        for _ in range(4):
            write(cache, SQL * 3, path)
        session = cache.namespace(path).open_session([1])
        assert len(session.step(SQL[:8], 4, verify_cost=0.1)) == 4
        truth = [*SQL[8:12], 7]
        for n, verified in parts:
            session.step(truth[:n], 0, verified=verified)
            truth = truth[n:]
        return native_of(session).gain, cache.namespace(path).stats().num_accepted_tokens

    whole = outcome("acme/whole", [(5, None)])
    assert whole[1] == 4
    for i, parts in enumerate(
        ([(5, Verified(5, 4))], [(1, None), (4, Verified(5, 4))], [(4, None), (1, None)])
    ):
        assert outcome(f"acme/{i}", parts) == whole


def test_a_huge_step_counts_as_one(cache: SuffixCache) -> None:
    namespace = cache.namespace("acme/m")
    for _ in range(3):
        write(cache, SQL)
    session = namespace.open_session([1])
    session.step(SQL[:8], 8)
    session.step([7] * 100_000, 0, verified=(2**31 - 1, 0, 2))
    session.step([7] * 100_000, 0, verified=(2**31 - 1, 2**31 - 2, 2))
    assert native_of(session).gain < 5
    assert len(namespace.open_session([1]).step(SQL[:8], 8)) == 8


def test_feedback_counts_no_more_than_was_written(cache: SuffixCache) -> None:
    session = cache.namespace("acme/m").open_session([1])
    session.step([2], verified=(2**31 - 1, 2**31 - 2, 1))
    assert cache.namespace("acme/m").stats().num_accepted_tokens == 1


def test_one_session_cannot_spoil_what_others_gain(cache: SuffixCache) -> None:
    """With any cost curve: the measured gain is shared between sessions, and saved."""
    for _ in range(3):
        write(cache, SQL)
    namespace = cache.namespace("acme/m")
    for curve in ([0, 1, 1e300, 1.0], [0, 1, 0, 0], [0, 1.0005, 1e300]):
        odd = namespace.open_session([1])
        for token in SQL * 20:
            odd.step([token], verify_cost=curve, verified=(9, 0, 1))
    assert namespace.learned_weights()
    later = namespace.open_session([1])
    later.step(SQL[:9], verify_cost=[0, 1, 1, 1.5, 2])
    assert 1e-3 < native_of(later).gain < 1e3

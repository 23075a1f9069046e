"""Builds, steps, writes and deletions of published runs at the same time."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import numpy as np
import pytest

from suffixsvc import NewOutput, Policies, Policy, SuffixCache

#: tokens of common texts are below it, those of one principal alone above
SECRET = 100_000
TEXTS = 12
LENGTH = 40


def text_of(number: int) -> list[int]:
    return [1000 * number + n for n in range(LENGTH)]


def add(cache: SuffixCache, principal: str, number: int) -> int:
    """Store a common text between two secrets."""
    own = SECRET + 1000 * number + 100 * "ab".index(principal)
    tokens = np.array([*range(own, own + 20), *text_of(number), *range(own + 20, own + 40)], np.int32)
    path = f"pool/{principal}"
    [output_id] = cache.namespace(path).add_outputs(
        [NewOutput(path, tokens, (len(tokens),), np.empty(0, np.int32), principal=principal)]
    )
    return output_id


@pytest.mark.parametrize("seed", range(2))
def test_readers_see_runs_while_they_are_built_and_deleted(tmp_path: Path, seed: int) -> None:
    """No secret is drafted, and no text after its deletion has returned."""
    policies = Policies({"pool": Policy(min_principals=2, match=8, publish_every_seconds=1)})
    failures: list[BaseException] = []
    stop = threading.Event()
    gone: set[int] = set()
    hits = [0]

    with SuffixCache(tmp_path / "d", policies=policies) as cache:

        def read(chance: random.Random) -> None:
            session = cache.namespace("eve/own").open_session(
                [1], reads=["pool"], private=True, principal="eve", sees_all=lambda path: path != "pool"
            )
            for _ in range(5):
                number, at = chance.randrange(TEXTS), chance.randrange(4, LENGTH - 4)
                deleted = frozenset(gone)
                draft = session.step([SECRET - 1, *text_of(number)[at - 4 : at]], verify_cost=0.0)
                drafted = set(draft.token_ids.tolist()) - set(session.token_ids().tolist())
                hits[0] += bool(drafted)
                assert all(token < SECRET - 1 for token in drafted), "a secret was drafted"
                assert not {token // 1000 for token in drafted} & deleted, "a deleted text was drafted"
            session.close(commit=False)

        def reader(number: int) -> None:
            chance = random.Random(1000 * seed + number)
            while not stop.is_set():
                read(chance)

        def builder() -> None:
            while not stop.is_set():
                cache.publish()

        def run(work: object, *arguments: int) -> threading.Thread:
            def guarded() -> None:
                try:
                    work(*arguments)  # type: ignore[operator] # a function
                except BaseException as error:
                    failures.append(error)
                    stop.set()

            thread = threading.Thread(target=guarded)
            thread.start()
            return thread

        ids = {number: [add(cache, name, number) for name in "ab"] for number in range(TEXTS)}
        cache.publish()
        threads = [run(reader, 0), run(reader, 1), run(builder)]
        chance = random.Random(seed)
        for number in chance.sample(range(TEXTS), TEXTS):
            if failures:
                break
            which = chance.randrange(2)
            cache.namespace(f"pool/{'ab'[which]}").delete(output_ids=[ids[number][which]])
            gone.add(number)
            stop.wait(0.05)
        stop.set()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        cache.publish()
        assert hits[0], "nothing was drafted"
        assert cache.namespace("pool").stats().published_runs == 0
        cache.check()

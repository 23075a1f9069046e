"""Service and followers are killed with SIGKILL at random moments: nothing acknowledged is lost or stored
twice, nothing forgotten comes back, and a follower that lives through all of it holds what the log holds."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from follower_child import CONFIG, PATH, WIDTH

from suffixsvc import SuffixCache
from suffixsvc_follower import Follower
from suffixsvc_follower.stream import connection
from support.following import followed, held
from support.forking import ForkServer
from support.long_form import rounds
from support.serving import ServeProcess, eventually, socket_dir
from support.stored import stored_outputs

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("FOLLOWER_CRASH_ROUNDS", rounds(3, full=6)))


class Truth:
    """What the killed followers said."""

    def __init__(self) -> None:
        #: output ids by key
        self.stored: dict[int, int] = {}
        self.forgetting: set[int] = set()
        self.forgotten: set[int] = set()

    def hear(self, line: str) -> None:
        kind, key, *rest = line.split()
        if kind == "=":
            self.stored[int(key)] = int(rest[0])
        elif kind == "-":
            self.forgetting.add(int(key))
        elif kind == "~":
            self.forgotten.add(int(key))
        else:
            raise AssertionError(f"a follower said {line!r}")

    def check_ids(self, ids: set[int]) -> None:
        lost = {key for key, output_id in self.stored.items() if output_id not in ids} - self.forgetting
        assert not lost, f"acknowledged and lost: {sorted(lost)[:9]}"
        back = {key for key in self.forgotten if self.stored[key] in ids}
        assert not back, f"forgotten and back: {sorted(back)[:9]}"


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer(Path(__file__).with_name("follower_child.py"))
    yield server
    server.close()


def test_kills_lose_nothing_and_store_nothing_twice(
    fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = int(os.environ.get("FOLLOWER_CRASH_SEED", random.randrange(10_000)))
    print(f"FOLLOWER_CRASH_SEED={seed}")
    rng, truth = random.Random(seed), Truth()
    monkeypatch.setattr(connection, "_LONGEST_PAUSE", 0.1)
    with socket_dir() as folder, ServeProcess(folder) as service:
        service.start()
        with Follower(service.address, CONFIG, [(PATH, "")]) as survivor:
            for number in range(ROUNDS):
                one_round(fork_server, service, truth, rng, number)
                eventually(
                    lambda: set(truth.stored.values()) - forgettable(truth) <= held(survivor, PATH),
                    "what was acknowledged is followed",
                )
            service.terminate()  # commits what the killed followers wrote as incomplete
            with SuffixCache(folder / "data", background=False) as cache:
                outputs = {each.output_id: each.output for each in stored_outputs(cache, PATH)}
            truth.check_ids(set(outputs))
            times = Counter(int(output.token_ids[0]) // WIDTH for output in outputs.values())
            assert not [key for key in truth.stored if times[key] > 1], "stored twice"
            for key, output_id in truth.stored.items():
                if output_id in outputs:
                    tokens = outputs[output_id].token_ids.tolist()
                    assert tokens == list(range(key * WIDTH, key * WIDTH + len(tokens)))
                    assert len(tokens) >= 4
                    assert not outputs[output_id].incomplete
            service.start()
            eventually(lambda: held(survivor, PATH) == set(outputs), "the survivor follows")
            copy = followed(survivor, PATH).copy
            eventually(lambda: len(copy.mirrors) == 0, "no live text is left")
            copy.check()
            for key in sorted(truth.stored)[-50:]:
                tokens = list(range(key * WIDTH, key * WIDTH + 3))
                with survivor.namespace(PATH).open_session(tokens, private=True) as session:
                    assert bool(len(session.step([]))) == (truth.stored[key] in outputs)
    print(f"{len(truth.stored)} acknowledged, {len(truth.forgotten)} forgotten, {len(outputs)} in the log")
    assert truth.stored


def forgettable(truth: Truth) -> set[int]:
    return {truth.stored[key] for key in truth.forgetting if key in truth.stored}


def one_round(
    fork_server: ForkServer, service: ServeProcess, truth: Truth, rng: random.Random, number: int
) -> None:
    """A follower lives for a moment; in most rounds, its service is killed meanwhile, and starts again."""
    lives_for = rng.uniform(0.4, 1.2)
    kill_at = rng.uniform(0.0, lives_for)
    failures: list[BaseException] = []

    def kill_the_service() -> None:
        try:
            service.kill()
            service.start()
        except BaseException as error:
            failures.append(error)

    timer = threading.Timer(kill_at, kill_the_service)
    if number % 3:
        timer.start()
    order = {"address": service.address, "seed": rng.random(), "first": (number + 1) * 20_000}
    status = fork_server.run(order, truth.hear, lives_for)
    assert status == -signal.SIGKILL
    if number % 3:
        timer.join()
    assert not failures, failures

"""Wall clocks that jump, processes that stand still, connections that are cut, clients that are killed.

Sessions expire by elapsed time, appends are exact, nothing is stored twice."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from record_writers import CLIENT, Writers
from write_record import PATHS, Row, Write, WriteRecord, key_of, tokens_of

from suffixsvc.store import LmdbStore
from suffixsvc_client import ClientConfig, EmptyReason, SuffixClient
from suffixsvc_follower import Follower, FollowerConfig
from support.command_line import run_verb
from support.cutting_proxy import CuttingProxy
from support.following import held
from support.forking import ForkServer
from support.serving import ServeProcess, eventually, socket_dir
from support.shifted_clock import ShiftedClock

HOUR = 3600.0
#: expired outputs and idle sessions are looked for at least so often
CONSTANTS = {"suffixsvc.service.server.LONGEST_EXPIRY_PERIOD_SECONDS": 0.2}
#: gives up soon, and so sends again what has arrived
IMPATIENT = ClientConfig(
    step_timeout_s=0.05, open_timeout_s=0.5, call_timeout_s=1.0, breaker_pause_s=0.01, breaker_max_pause_s=0.1
)
SEED = int(os.environ.get("RELIABILITY_SEED", "1"))


def rows_of(data: Path) -> list[Row]:
    """Check a folder that no process has open; its outputs."""
    run = run_verb("check", "--data", data)
    assert run.returncode == 0, run.stdout + run.stderr
    store = LmdbStore(data)
    try:
        store.check()
        return [Row.of(stored) for stored in store.scan()]
    finally:
        store.close()


# --- the wall clock -------------------------------------------------------------------------------------


def drafts(client: SuffixClient, text: list[int]) -> bool:
    with client.namespace("ttl").open_session([1], private=True) as session:
        return session.step(text[:-1], max_draft_tokens=2).token_ids.tolist() == text[-1:]


def runs_of_expiry(client: SuffixClient) -> int:
    """Least number of runs of the tasks that expire sessions and outputs."""
    return min(task.runs for task in client.stats().background_tasks if task.name.startswith("expire-"))


def test_the_wall_clock_jumps(figure: Callable[..., None]) -> None:
    jumps = [5 * HOUR, -3 * HOUR, 30 * 24 * HOUR, 0.0]
    long, short = list(range(100, 110)), list(range(200, 210))
    ids: list[int] = []
    with socket_dir() as folder:
        clock = ShiftedClock(folder / "clock")
        with ServeProcess(folder, constants=CONSTANTS, environ=clock.environ) as service:
            service.start()
            with SuffixClient(service.address, CLIENT) as client:
                space = client.namespace("ttl")
                ids.append(space.add_output(long, [1], ttl_seconds=3600))
                ids.append(space.add_output(short, [1], ttl_seconds=2))
                idle, busy = client.namespace("a").open_session([1]), client.namespace("a").open_session([2])
                idle.step([5, 6, 7])
                for number, ahead in enumerate(jumps):
                    clock.set(ahead)
                    ids.append(space.add_output([900 + number, 901], [1]))
                    before = runs_of_expiry(client)
                    eventually(lambda before=before: runs_of_expiry(client) >= before + 3, "expiry has run")
                    busy.step([10 + number])
                    assert client.stats().sessions == 2, "no session expired by a jump"
                    assert drafts(client, long), f"expired by a jump of {ahead} s"
                eventually(lambda: not drafts(client, short), "it expires after two seconds")
                assert EmptyReason.SESSION_LOST not in client.counts.empty
                assert busy.close() is not None
                assert idle.close() is not None
                ids += [space.add_output([950, n], [1]) for n in range(3)]
            assert service.terminate() == 0
            for ahead in (
                -2 * HOUR,
                10 * HOUR,
            ):  # the gap of the second start is longer than the time to live
                clock.set(ahead)
                service.start()
                with SuffixClient(service.address, CLIENT) as client:
                    assert drafts(client, long), "kept for the grace period"
                    ids += [client.namespace("ttl").add_output([960, n], [1]) for n in range(3)]
                assert service.terminate() == 0
        assert ids == sorted(set(ids)), "ids rise, and none is used twice"
        rows_of(folder / "data")
    figure("jumps of the wall clock, restarts", f"{len(jumps)}, 2", "nothing expires or lives on by them")
    figure("ids over all jumps", len(ids), "rise, each once")


def test_idle_sessions_expire_by_elapsed_time(figure: Callable[..., None]) -> None:
    """Also if the wall clock was set back by hours meanwhile; their text is stored as incomplete."""
    with socket_dir() as folder:
        clock = ShiftedClock(folder / "clock")
        idle = ("--session-idle-seconds", "1")
        with ServeProcess(folder, *idle, constants=CONSTANTS, environ=clock.environ) as service:
            service.start()
            with SuffixClient(service.address, CLIENT) as client:
                session = client.namespace("a").open_session([1])
                session.step([64, 65, 66])
                clock.set(-5 * HOUR)
                eventually(lambda: client.stats().sessions == 0, "it expires")
            assert service.terminate() == 0
        [row] = rows_of(folder / "data")
        assert (row.tokens, row.incomplete) == ((64, 65, 66), True)
    figure("an idle session, the clock set back 5 h", "expires", "by elapsed time")


# --- processes that stand still or end ---------------------------------------------------------------------


def test_a_service_that_stands_still(full: bool, figure: Callable[..., None]) -> None:
    """Clients give up, and send again what it has or has not done when it goes on."""
    stops = 60 if full else 5
    record, rng = WriteRecord(), Random(SEED)
    with socket_dir() as folder, ServeProcess(folder) as service:
        service.start()
        writers = Writers(record, SEED)
        with (
            SuffixClient(service.address, IMPATIENT) as client,
            Follower(
                service.address, FollowerConfig(client=IMPATIENT), [(path, "") for path in PATHS]
            ) as follower,
        ):
            writers.start(writers.write_sessions, client)
            writers.start(writers.add_outputs, client)
            writers.start(writers.write_sessions, follower)
            for _ in range(stops):
                time.sleep(rng.uniform(0.1, 0.5))
                service.send(signal.SIGSTOP)
                time.sleep(rng.uniform(0.5, 2.0))
                service.send(signal.SIGCONT)
                writers.require_alive()
            writers.stop()
        assert service.terminate() == 0
        record.compare(rows_of(folder / "data"))
    counts = record.counts()
    assert counts["acknowledged"]
    figure(
        "SIGSTOP of the service, calls sent again", f"{stops}, {writers.refusals}", "appends exact, 0 twice"
    )
    figure("  acknowledged outputs, deletions", f"{counts['acknowledged']}, {counts['deleted']}", "0 lost")


@pytest.fixture(scope="module")
def children() -> Iterator[ForkServer]:
    server = ForkServer(Path(__file__).with_name("record_child.py"))
    yield server
    server.close()


class Heard:
    """What killed writers said, as a record."""

    def __init__(self) -> None:
        self.record, self.written = WriteRecord(), dict[int, int]()
        self.opened = threading.Event()

    def __call__(self, line: str) -> None:
        kind, *numbers = line.split()
        values = [int(number) for number in numbers]
        if kind == "+":
            self.record.writes[values[0]] = Write(PATHS[0], values[1], values[0], session=True)
        elif kind == "=":
            self.record.acknowledge([values[0]], [values[1]])
        elif kind == ".":
            self.written[values[0]] = values[1]
        elif kind == "open":
            self.opened.set()
        else:
            raise AssertionError(f"a writer said {line!r}")


def test_a_client_that_stands_still_and_is_killed(
    children: ForkServer, full: bool, figure: Callable[..., None]
) -> None:
    """It is stopped for longer than its sessions live, goes on, and is killed in the middle of a write."""
    rounds = 20 if full else 2
    heard, rng = Heard(), Random(SEED)
    with socket_dir() as folder:
        options = ("--session-idle-seconds", "0.5")
        with ServeProcess(folder, *options, constants=CONSTANTS) as service:
            service.start()
            for number in range(rounds):
                order = {
                    "work": "write",
                    "address": service.address,
                    "first": 1 + number * 100_000,
                    "seed": f"{SEED}/{number}",
                }
                stopper = threading.Thread(target=stop_sometimes, args=(children, Random(rng.random())))
                stopper.start()
                assert children.run(order, heard, kill_after=6.0) == -signal.SIGKILL
                stopper.join()
            with SuffixClient(service.address, CLIENT) as client:
                eventually(lambda: client.stats().sessions == 0, "the sessions of killed clients expire")
            assert service.terminate() == 0
        heard.record.compare(rows_of(folder / "data"))
    counts = heard.record.counts()
    assert counts["acknowledged"]
    figure("SIGSTOP, then kill -9, of a client", rounds, "appends exact, 0 twice; sessions expire")
    figure("  acknowledged outputs", counts["acknowledged"], "0 lost")


def stop_sometimes(children: ForkServer, rng: Random) -> None:
    """Stop the child a few times, each time for longer than its sessions live without it."""
    eventually(lambda: children.pid, "it runs")
    pid = children.pid
    for _ in range(2):
        time.sleep(rng.uniform(0.3, 0.8))
        try:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(1.2)
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return


def test_a_client_that_is_killed_with_open_sessions(
    children: ForkServer, figure: Callable[..., None]
) -> None:
    """Its sessions expire, and what they wrote is stored, exactly, as incomplete."""
    heard, number = Heard(), 40
    with socket_dir() as folder:
        with ServeProcess(folder, "--session-idle-seconds", "20", constants=CONSTANTS) as service:
            service.start()
            order = {"work": "abandon", "address": service.address, "first": 1, "sessions": number}

            def kill() -> None:
                heard.opened.wait(300)
                os.kill(children.pid, signal.SIGKILL)

            killer = threading.Thread(target=kill)
            killer.start()
            assert children.run(order, heard, None) == -signal.SIGKILL
            killer.join()
            with SuffixClient(service.address, CLIENT) as client:
                eventually(lambda: client.stats().sessions == 0, "they expire")
            service.kill()  # an expired session is in the log, not in a drain
        rows = rows_of(folder / "data")
    assert len(heard.written) == number
    assert all(row.incomplete for row in rows)
    found = {key_of(row): row.tokens for row in rows}
    assert found == {key: tuple(tokens_of(key, n).tolist()) for key, n in heard.written.items()}
    assert len(rows) == number
    figure("kill -9 of a client with open sessions", number, "all expire; their text exact, incomplete")


# --- connections -----------------------------------------------------------------------------------------


def test_connections_are_cut_at_any_byte(full: bool, figure: Callable[..., None]) -> None:
    cuts, record = (3000 if full else 150), WriteRecord()
    with socket_dir() as folder:
        with ServeProcess(folder, listen=("127.0.0.1:0",)) as service:
            service.start()
            writers = Writers(record, SEED)
            with CuttingProxy(service.ready["addresses"][0], SEED) as proxy:
                config = FollowerConfig(client=CLIENT, connect_seconds=60)
                with (
                    SuffixClient(proxy.address, CLIENT) as client,
                    SuffixClient(proxy.address, CLIENT) as other,
                    Follower(proxy.address, config, [(path, "") for path in PATHS]) as follower,
                ):
                    writers.start(writers.write_sessions, client)
                    writers.start(writers.add_outputs, other)
                    writers.start(writers.write_sessions, follower)

                    def enough() -> bool:
                        writers.require_alive()
                        return proxy.cuts >= cuts

                    eventually(enough, "connections are cut")
                    proxy.cutting = False
                    writers.stop()
                    for path in PATHS:
                        eventually(
                            lambda path=path: record.stored_ids(path) <= held(follower, path),
                            "what was acknowledged is followed",
                        )
            assert service.terminate() == 0
        record.compare(rows_of(folder / "data"))
    counts = record.counts()
    assert counts["acknowledged"]
    figure("connections cut, calls sent again", f"{proxy.cuts}, {writers.refusals}", "appends exact, 0 twice")
    figure(
        "  acknowledged outputs, deletions",
        f"{counts['acknowledged']}, {counts['deleted']}",
        "0 lost, 0 back",
    )

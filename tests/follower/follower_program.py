"""follower_program.py WHAT ADDRESS: programs with followers, which tests stop, fork or let end.

They run in processes of their own: what they do to threads and forks would not end with a test.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

import follower_child

from suffixsvc.errors import SessionClosedError
from suffixsvc_client import ClientConfig
from suffixsvc_follower import Follower

PATH: Final = "acme/sql"
TEXT: Final = [7, 8, 9, 10, 11, 12]
CONFIG: Final = follower_child.CONFIG


def drafted(follower: Follower) -> int:
    """Number of tokens that follow the beginning of TEXT."""
    with follower.namespace(PATH).open_session([1], private=True) as session:
        return len(session.step(TEXT[:3], max_draft_tokens=3))


def steps(address: str) -> None:
    """Drafts all the time. Prints the first draft, and the first one after a pause of the process."""
    follower = Follower(address, CONFIG, [(PATH, "")])
    assert follower.wait(PATH, 60)
    session = follower.namespace(PATH).open_session([1], private=True)
    print("first", len(session.step(TEXT[:3], max_draft_tokens=3)), flush=True)
    last = time.monotonic()
    while True:
        now = time.monotonic()
        drafts = len(session.draft_after(TEXT[:3], max_draft_tokens=3))
        if now - last > 1.0:
            print("resumed", drafts, flush=True)
        last = now


def forks(address: str) -> None:
    """A follower that is opened before a fork, in use by a session and the threads of its process."""
    follower = Follower(address, CONFIG, [(PATH, "")])
    assert follower.wait(PATH, 60)
    session = follower.namespace(PATH).open_session([1])
    session.step([50, 51, 52])

    def child() -> None:
        for call in (
            lambda: session.step([53]),
            lambda: session.append_context([53]),
            lambda: session.draft_after([53]),
            session.retract,
            session.close,
            lambda: session.close(commit=False),
        ):
            _require_closed(call)
        assert follower.wait(PATH, 60)
        assert drafted(follower) == 3
        with follower.namespace(PATH).open_session([1]) as own:
            own.step([60 + os.getpid() % 2, 70, 71])
        follower.close()

    pid = os.fork()
    if not pid:
        status = 1
        try:
            child()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "os.fork"
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0, "multiprocessing"
    session.step([53])
    assert session.close() is not None
    follower.close()
    print("done", flush=True)


def forks_while_writing(address: str) -> None:
    """Forks many times while threads write: every child follows, and no close of the parent fails."""
    follower = Follower(address, CONFIG, [(PATH, "")])
    assert follower.wait(PATH, 60)
    done = threading.Event()

    def write() -> int:
        outputs = 0
        while not done.is_set():
            with follower.namespace(PATH).open_session([1]) as session:
                for token in range(40):
                    session.step([100 + token])
                    time.sleep(0.001)
            outputs += 1
        return outputs

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write) for _ in range(2)]
        for number in range(40):
            child = os.fork()
            if not child:
                os._exit(0 if follower.wait(PATH, 60) and drafted(follower) == 3 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, number
        done.set()
        print(sum(each.result() for each in writers), flush=True)
    follower.close()


def _require_closed(call: Callable[[], object]) -> None:
    try:
        call()
    except SessionClosedError:
        return
    raise AssertionError("a session of the parent can be used")


def ends(address: str) -> None:
    """Ends without closing anything, while the service is stopped."""
    client = ClientConfig(step_timeout_s=0.2, open_timeout_s=0.2, call_timeout_s=0.5)
    follower = Follower(address, replace(CONFIG, client=client), [(PATH, "")])
    assert follower.wait(PATH, 60)
    live = [follower.namespace(PATH).open_session([1]) for _ in range(40)]
    for session in live:
        session.step(TEXT)
    print("open", flush=True)
    sys.stdin.readline()  # the service is stopped
    for number, session in enumerate(live[:30]):
        session.close(commit=number % 2 == 0, wait=False)
    print("done", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    programs = {each.__name__: each for each in (steps, forks, forks_while_writing, ends)}
    programs[sys.argv[1]](sys.argv[2])

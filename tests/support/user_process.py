"""Processes of other user ids that run code of a test. Run as a program, this module is such a process.

The files of this project may not be readable for other users. The process therefore keeps the capability to
read any file (and no other one) when it changes its user, so that it can import what it needs.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

__all__ = ["UserProcess"]

#: prctl(2), capabilities(7)
_PR_SET_KEEPCAPS = 8
_CAPABILITY_VERSION = 0x20080522
_DAC_READ_SEARCH = 1 << 2


class UserProcess:
    """A process of a user id that runs ``code``, which may name ``tell`` and ``wait``. Ended with the block.

    ``tell(value)`` is what :meth:`hear` returns, as JSON; ``wait()`` returns what was passed to :meth:`say`.
    Skips the test where this process cannot change its user.

    Args:
        uid: of the process.
        code: Python.
        names: further names of it, of JSON values.
    """

    def __init__(self, uid: int, code: str, **names: Any) -> None:
        if os.geteuid():
            pytest.skip("only root can start a process of another user")
        self._order = json.dumps({"uid": uid, "code": textwrap.dedent(code), "names": names})

    def __enter__(self) -> Self:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SUFFIXSVC_")}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=environment | {"HOME": "/"},
        )
        self.say_line(self._order)
        if self.hear() == "no other user":
            self.__exit__(None, None, None)
            pytest.skip("this machine cannot change the user of a process")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def hear(self) -> Any:
        """What the process tells next. Fails if it has ended; its error is on stderr."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process has ended"
        return json.loads(line)

    def say(self, value: Any) -> None:
        self.say_line(json.dumps(value))

    def say_line(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


def _become(uid: int) -> None:
    """Change the user. OSError: the user namespace of this process does not have it."""
    if uid == os.geteuid():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    kept = (ctypes.c_uint32 * 6)(_DAC_READ_SEARCH, _DAC_READ_SEARCH)  # effective, permitted, inheritable
    if libc.capset(ctypes.byref(header), ctypes.byref(kept)):
        raise OSError(ctypes.get_errno(), "capset")


def _run() -> None:
    order = json.loads(sys.stdin.readline())
    try:
        _become(order["uid"])
    except OSError:
        print(json.dumps("no other user"), flush=True)
        return
    print(json.dumps("changed"), flush=True)
    names = dict(order["names"])
    names["tell"] = lambda value: print(json.dumps(value), flush=True)
    names["wait"] = lambda: json.loads(sys.stdin.readline())
    exec(compile(order["code"], str(Path("user_process")), "exec"), names)


if __name__ == "__main__":
    _run()

"""``suffixsvc VERB`` as a process, forked from one that has loaded the modules: a start costs no imports.

Run as a program with the number of a socket, this module is the parent of those processes. ``start_verb`` is
the other end. A verb whose start from a shell is tested is started as a command instead.
"""

from __future__ import annotations

import array
import atexit
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import suffixsvc_cli
from suffixsvc.runtime.grpc_poller import use_low_latency_poller

__all__ = ["ForkedVerb", "start_verb"]

#: what `suffixsvc serve` imports after it has parsed its options
LOADED = (
    "suffixsvc_cli.base.logs",
    "suffixsvc_cli.server.serve",
    "suffixsvc.service.run",
    "suffixsvc.service.metrics.collector",
    "suffixsvc.service.metrics.http_server",
    "suffixsvc.store.lmdb_store",
)


class ForkedVerb:
    """A running verb, with the part of ``subprocess.Popen`` that tests use; its stderr is a pipe."""

    def __init__(
        self, parent: socket.socket, arguments: Sequence[str], constants: Mapping[str, float]
    ) -> None:
        self.args = [*arguments]
        self.returncode: int | None = None
        read, write = os.pipe()
        self._status, status = os.pipe()
        self.stderr = os.fdopen(read, encoding="utf-8")
        order = {
            "arguments": self.args,
            "environ": dict(os.environ),
            "folder": os.getcwd(),
            "constants": dict(constants),
        }
        try:
            socket.send_fds(parent, [json.dumps(order).encode()], [write, status])
        finally:
            os.close(write)
            os.close(status)
        self.pid = array.array("i", os.read(self._status, 4))[0]

    def poll(self) -> int | None:
        """The exit status; None: it runs."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[None, str]:
        """Standard error to its end, after the end of the process."""
        deadline = None if timeout is None else time.monotonic() + timeout
        text = self.stderr.read()
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        self.stderr.close()
        return None, text

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            told = os.read(self._status, 4)
            os.close(self._status)
            assert told, "the parent of the verbs was killed"
            self.returncode = array.array("i", told)[0]
        return self.returncode


def start_verb(*arguments: str, constants: Mapping[str, float]) -> ForkedVerb:
    """Start ``suffixsvc ARGUMENTS`` with the environment, and in the folder, of this process.

    Args:
        constants: values of modules' constants there, by their full names.
    """
    return ForkedVerb(_parent(), arguments, constants)


@functools.cache
def _parent() -> socket.socket:
    """The connection to this process's parent of verbs, which ends when the connection is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, __file__, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _tell(status: int, number: int) -> None:
    os.write(status, array.array("i", [number]).tobytes())


def _run(order: bytes, stderr: int, status: int) -> int:
    """In a fork of the parent: run a verb in a fork of this process, and tell its number and its exit status.

    Returns in the verb's process only.
    """
    child = os.fork()
    if child:
        os.close(stderr)
        _tell(status, child)
        _tell(status, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os._exit(0)
    os.close(status)
    os.dup2(stderr, 2)
    os.close(stderr)
    told = json.loads(order)
    os.environ.clear()
    os.environ.update(told["environ"])
    os.chdir(told["folder"])
    for name, value in told["constants"].items():
        module, _, constant = name.rpartition(".")
        assert hasattr(importlib.import_module(module), constant), name
        setattr(importlib.import_module(module), constant, value)
    sys.argv[:] = ["suffixsvc", *told["arguments"]]
    return suffixsvc_cli.main()


def main(orders: socket.socket) -> int:
    """Fork for each order; return in the verbs' processes, and here at the end of the orders."""
    use_low_latency_poller()  # before the import of gRPC, as a verb does
    for module in LOADED:
        importlib.import_module(module)
    gc.freeze()  # collections in a verb neither traverse nor copy what was loaded
    waiting: set[int] = set()
    while order := socket.recv_fds(orders, 1 << 20, 2):
        data, fds, _, _ = order
        if not data:
            break
        waiting -= {pid for pid in waiting if os.waitpid(pid, os.WNOHANG)[0]}
        pid = os.fork()
        if pid == 0:
            orders.close()
            gc.unfreeze()
            return _run(data, *fds)
        waiting.add(pid)
        for fd in fds:
            os.close(fd)
    for pid in waiting:
        os.waitpid(pid, 0)
    return 0


if __name__ == "__main__":
    sys.path.insert(1, str(Path(__file__).parent.parent))
    sys.exit(main(socket.socket(fileno=int(sys.argv[1]))))

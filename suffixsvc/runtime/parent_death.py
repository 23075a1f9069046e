"""Launcher of a command that is killed when its parent ends: ``python -I -S parent_death.py``.

Arguments: PARENT_PID COMMAND... It imports the standard library only, to start at once. On Linux the kernel
sends SIGKILL to the command when the parent ends, also if the parent was killed with SIGKILL. On other
systems only the parent's own clean-up applies.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

__all__: list[str] = []

PR_SET_PDEATHSIG: Final = 1


def main(parent: int, command: list[str]) -> None:
    """Request the parent-death signal, then replace this process by ``command``."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit("the parent has ended already")
    os.execvp(command[0], command)  # noqa: S606  # the caller's command line, unchanged


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

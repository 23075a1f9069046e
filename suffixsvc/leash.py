"""``python -m suffixsvc.leash PARENT COMMAND...``: run COMMAND, which dies with its parent.

Even a parent that is killed with -9 leaves nothing behind: on Linux the kernel kills the command as soon
as the parent is gone. Elsewhere the command simply runs, and the parent's own clean-up has to do.
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
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit("the parent is gone already")
    os.execvp(command[0], command)  # noqa: S606  # our own command line, handed on as it is


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

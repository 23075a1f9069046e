"""``python -m suffixsvc_bench.demo.leash PARENT COMMAND...``: run COMMAND, which dies with its parent.

Even a demo that is killed with -9 leaves nothing behind: on Linux the kernel kills the command as soon
as the demo is gone. Elsewhere the command simply runs, and the demo's own clean-up has to do.
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
    os.execvp(command[0], command)  # our own command line, handed on as it is


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

"""Writes to a store under the recorder of ``powercut.c``: two lives of one folder, promises included.

LD_PRELOAD=powercut.so python powercut_child.py FOLDER JOURNAL SEED SYNC
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))  # where crash_child finds support

import crash_child


def main() -> None:
    folder, journal, seed, sync = sys.argv[1:]
    recorder = ctypes.CDLL(None)  # the preloaded library's names are the process's own
    recorder.powercut_watch(folder.encode(), journal.encode())
    crash_child.say = lambda line: recorder.powercut_promise(line.encode())
    for life in range(2):
        order = {
            "folder": folder,
            "seed": int(seed) * 10 + life,
            "point": None,
            "hits": 0,
            "big": False,
            "ops": 40,
            "sync": sync == "sync",
        }
        crash_child.live(order)


if __name__ == "__main__":
    main()

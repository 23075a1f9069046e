"""Child process of the power cut tests: opens one folder twice, under the recorder ``powercut.c``.

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
    recorder = ctypes.CDLL(None)  # symbols of the preloaded library
    recorder.powercut_watch(folder.encode(), journal.encode())
    crash_child.report = lambda line: recorder.powercut_acknowledge(line.encode())
    for life in range(2):
        order = {
            "folder": folder,
            "seed": int(seed) * 10 + life,
            "point": None,
            "hits": 0,
            "big": False,
            "ops": 30,
            "sync": sync == "sync",
        }
        crash_child.live(order)


if __name__ == "__main__":
    main()

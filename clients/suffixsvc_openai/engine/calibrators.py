"""Calibration of the drafting layers, by principal: none learns from the answers of another.

Prices of steps and the rate of the batch are shared, so the length of drafts can depend on others.

It is kept in memory only; a principal begins uncalibrated after a restart.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from suffixsvc_driver.policy.calibration import Calibrator

#: principals with a calibrator, about 10 KB each; those of the newest requests
MAX_PRINCIPALS: Final = 1024


class Calibrators:
    """The calibrator of each principal. Thread-safe; the calibrators themselves are not.

    Args:
        most: principals whose calibrator is kept; the least recently used one is dropped.
    """

    def __init__(self, most: int = MAX_PRINCIPALS) -> None:
        self._most = most
        self._found: OrderedDict[str, Calibrator] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, principal: str) -> Calibrator:
        """Return the calibrator of a principal, which all its answers share."""
        with self._lock:
            found = self._found.setdefault(principal, Calibrator())
            self._found.move_to_end(principal)
            if len(self._found) > self._most:
                self._found.popitem(last=False)
        return found

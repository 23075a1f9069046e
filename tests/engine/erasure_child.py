"""Child process that deletes by selection and erases from the disk, until it is killed.

An order (``support.child_runner``): {"folder": ..., "point": name or null, "hits": n}. It prints "deleted"
after the first stage, "erased" after the second one, and "! POINT" before it is killed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from erasure_testing import reopened

from suffixsvc import Selection
from support.child_runner import kill_hook, report


def live(order: dict[str, Any]) -> None:
    """Delete what ann wrote, and erase it."""
    cache = reopened(Path(order["folder"]), sync_point=kill_hook(order))
    deletion = cache.delete(Selection(principal="ann"))
    report(f"deleted {deletion.outputs}")
    cache.erase()
    report("erased")
    os._exit(0)  # no close: what is acknowledged is on the disk

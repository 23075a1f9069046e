"""Child process that writes, backs up, restores or repairs until it is killed.

An order (``support.child_runner``):

    {"work": "backup", "restore" or "repair", "root": ..., "point": ..., "hits": n}
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from backup_testing import NS, open_cache, output

from suffixsvc.engine.backup.restore import restore
from suffixsvc.engine.repair.rebuild import repair_folder
from support.child_runner import kill_hook, report


def live(order: dict[str, Any]) -> None:
    """Do one piece of work, and report "end" if the process was not killed."""
    root, hook = Path(order["root"]), kill_hook(order)
    if order["work"] == "backup":
        random = Random(order["hits"])

        def write_and_hook(name: str) -> None:
            hook(name)
            if name == "backup-page":  # writes go on, and each is acknowledged
                ids = cache.namespace(NS).add_outputs([output(random) for _ in range(2)])
                report(f"+ {' '.join(map(str, ids))}")

        with open_cache(root / "data", write_and_hook) as cache:
            cache.backup(root / "backup")
    elif order["work"] == "restore":
        restore(root / "backup", root / "restored", sync_point=hook)
    else:
        repair_folder(root / "damaged", sync_point=hook)
    report("end")

"""Fork detection: a forked child inherits its parent's memory, but cannot use its connections and threads."""

from __future__ import annotations

import os

__all__ = ["Forks"]


class Forks:
    """Number of forks between the first process that loaded this module and this one."""

    count = 0

    @classmethod
    def record(cls) -> None:
        """Count a fork; called in the child."""
        cls.count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Forks.record)

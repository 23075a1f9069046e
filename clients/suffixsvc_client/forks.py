"""Whether this process is a child that goes on with its parent's memory: connections and threads are the
parent's then."""

from __future__ import annotations

import os

__all__ = ["Forks"]


class Forks:
    """Of this process and its ancestors."""

    #: how often that has happened
    count = 0

    @classmethod
    def another(cls) -> None:
        """In the child of a fork."""
        cls.count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Forks.another)

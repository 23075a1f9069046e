"""The victim: a real ``suffixsvc build``, in batches so small that there is always something half done.

An order (``support.victims``): {"arguments": [...]}; it says ``code N`` when it came to its end.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any

import suffixsvc_caches.building.corpus as corpus
import suffixsvc_caches.counting.batches as batches
import suffixsvc_caches.counting.merging as merging
from support.victims import say

from suffixsvc import cli
from suffixsvc.cli import build, build_show

#: loaded before the fork, so that a victim's time goes into building
LOADED = (build, build_show)


def live(order: dict[str, Any]) -> None:
    batches._CALLS = 40  # type: ignore[misc] # a constant elsewhere
    merging.FAN_IN = 4  # type: ignore[misc]
    corpus._OUTPUTS = 50  # type: ignore[misc]
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        code = cli.main(["build", *order["arguments"]])
    say(f"code {code} {' '.join(told.getvalue().split())[:900]}")

"""Child process that runs ``suffixsvc build`` with small batches, to be killed at any time.

An order (``support.child_runner``): {"arguments": [...]}; it says ``code N`` when it came to its end.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any

import suffixsvc_caches.building.corpus as corpus
import suffixsvc_caches.counting.batches as batches
import suffixsvc_caches.counting.merging as merging
import suffixsvc_cli as cli
from suffixsvc_cli.corpus import build, build_show
from support.child_runner import report

#: loaded before the fork, so that a victim's time goes into building
LOADED = (build, build_show)
with contextlib.redirect_stdout(io.StringIO()):
    cli.main(["build", "--help"])  # loads what the command line needs


def live(order: dict[str, Any]) -> None:
    batches.BATCH_CALLS = 40  # type: ignore[misc] # a constant elsewhere
    merging.FAN_IN = 4  # type: ignore[misc]
    corpus.BATCH_OUTPUTS = 30  # type: ignore[misc]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = cli.main(["build", *order["arguments"]])
    report(f"code {code} {' '.join(output.getvalue().split())[:900]}")

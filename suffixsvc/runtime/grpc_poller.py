"""Selection of gRPC's poller for this project's processes: the one with fewer hand-offs between threads.

grpcio 1.80 made the EventEngine the default for Python. A bare echo over a unix socket (grpcio 1.85, two
cores, a model decoding between two calls) took a median of 0.90 ms with it and 0.72 ms with the older poller;
the 90th percentiles were 3 ms and 1 ms. Every decode step waits for such a call.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Final

_VARIABLE: Final = "GRPC_EXPERIMENTS"
#: releases that have both pollers: others warn about unknown names
_FIRST, _LAST = (1, 80), (1, 85)


def use_low_latency_poller() -> None:
    """Select the older poller for this process and its children, unless GRPC_EXPERIMENTS is set.

    Must be called before ``grpc`` is imported.
    """
    release = tuple(int(part) for part in version("grpcio").split(".")[:2])
    if _FIRST <= release <= _LAST:
        os.environ.setdefault(_VARIABLE, "-event_engine_client,-event_engine_listener")

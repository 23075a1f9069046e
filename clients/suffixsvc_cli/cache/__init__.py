"""``suffixsvc cache VERB``: inspection and manipulation of llama.cpp's lookup caches."""

from __future__ import annotations

from suffixsvc_cli.base.groups import verb_group
from suffixsvc_cli.cache.change import diff, import_, merge, prune
from suffixsvc_cli.cache.forecast import forecast
from suffixsvc_cli.cache.look import inspect, verify
from suffixsvc_cli.cache.make import make

__all__ = ["app"]

app = verb_group(
    "Inspect, verify, evaluate and combine lookup caches of llama.cpp (--lookup-cache-static, "
    "--lookup-cache-dynamic), from any program. See docs/lookup.md.",
    *(inspect, verify, forecast, merge, prune, import_, diff, make),
)

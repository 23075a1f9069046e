"""``suffixsvc cache VERB``: inspection and manipulation of llama.cpp's lookup caches."""

from __future__ import annotations

import typer

from suffixsvc_cli.cache.change import diff, import_, merge, prune
from suffixsvc_cli.cache.forecast import forecast
from suffixsvc_cli.cache.look import inspect, verify
from suffixsvc_cli.cache.make import make

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help=(
        "Inspect, verify, evaluate and combine lookup caches of llama.cpp (--lookup-cache-static, "
        "--lookup-cache-dynamic), from any program. See docs/lookup.md."
    ),
)
app.command("inspect")(inspect)
app.command("verify")(verify)
app.command("forecast")(forecast)
app.command("merge")(merge)
app.command("prune")(prune)
app.command("import")(import_)
app.command("diff")(diff)
app.command("make")(make)

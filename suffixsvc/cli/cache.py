"""``suffixsvc cache VERB``: lookup caches of llama.cpp, looked at and put together."""

from __future__ import annotations

import typer

from suffixsvc.cli.cache_change import diff, import_, merge, prune
from suffixsvc.cli.cache_forecast import forecast
from suffixsvc.cli.cache_look import inspect, verify
from suffixsvc.cli.cache_make import make

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help=(
        "Look at lookup caches of llama.cpp (--lookup-cache-static, --lookup-cache-dynamic), whoever made "
        "them: what is in them, whether they are whole, what they would bring. See docs/lookup.md."
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

"""Groups of verbs: ``suffixsvc GROUP VERB``."""

from __future__ import annotations

from collections.abc import Callable

import typer


def verb_group(about: str, *verbs: Callable[..., None]) -> typer.Typer:
    """A typer app of these verbs, each named as its function without the prefix ``bench_`` and a final _."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=about)
    for verb in verbs:
        app.command(verb.__name__.removeprefix("bench_").rstrip("_"))(verb)
    return app

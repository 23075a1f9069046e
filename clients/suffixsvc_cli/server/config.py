"""``suffixsvc config``: the options of a server, and where each one was set."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suffixsvc.errors import InvalidConfigError
from suffixsvc_cli.base.options import AsJson

if TYPE_CHECKING:
    from suffixsvc_cli.base.configuration import Setting

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Show the options of a server, and where each one was set.",
)


@app.callback()
def _group() -> None:
    """Keep this a group of verbs, although it has one only."""


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def show(
    context: typer.Context,
    verb: Annotated[str, typer.Argument(metavar="serve|draft-worker|openai", help="The server.")],
    as_json: AsJson = False,
) -> None:
    """Show every option of a server: its value, and where it was set.

    The server is not started. Give the options that it is started with after its name:

        suffixsvc config show serve --config suffixsvc.toml --max-sessions 100
    """
    from suffixsvc_cli.base.configuration import TABLES

    if verb not in TABLES:
        raise InvalidConfigError("VERB must be the name of a server", expected=", ".join(TABLES), got=verb)
    root: Any = context.find_root()
    settings: list[Setting] = root.command.get_command(root, verb).load().settings(context.args)
    if as_json:
        answer = {
            each.key: {
                "value": each.value,
                "default": each.default or None,
                "source": each.source,
                "where": each.where or None,
            }
            for each in settings
        }
        typer.echo(json.dumps(answer, default=str))
        return
    rows = [("option", "value", "set by")]
    rows += [(each.key, _shown(each), each.where or each.source) for each in settings]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for key, value, where in rows:
        typer.echo(f"{key:{widths[0]}}  {value:{widths[1]}}  {where}")


def _shown(setting: Setting) -> str:
    """The value of an option in words."""
    value = setting.value
    if value is None or value in ((), []):
        return setting.default or "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)

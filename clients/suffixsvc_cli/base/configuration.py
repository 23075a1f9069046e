"""Options of a long-running verb from a file and from the environment (docs/configuration.md).

    default < table [serve] of --config FILE < SUFFIXSVC_SERVE_MAX_SESSIONS < --max-sessions

The key of an option is its name without leading dashes, that of an argument its name. Reading and precedence
are click's: the table is the ``default_map`` of the command's context, every parameter has a variable.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

import structlog
import typer
from typer.core import TyperCommand

from suffixsvc.errors import InvalidConfigError
from suffixsvc.verb_options import file_types

log = structlog.get_logger(__name__)

#: verbs that have a table in a configuration file
TABLES: Final = ("serve", "draft-worker", "openai")
_CONFIG: Final = "config"
_OPTION: Final = re.compile(r"--([a-z-]+)")

Source = Literal["default", "file", "environment", "command line"]
#: names of click's ParameterSource
_SOURCES: Final[Mapping[str, Source]] = {
    "DEFAULT_MAP": "file",
    "ENVIRONMENT": "environment",
    "COMMANDLINE": "command line",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """Effective value of an option.

    Attributes:
        key: of the option in a file.
        value: None: not set, ``default`` applies.
        default: what applies without a value, in words; "" for a default that is a value.
        where: the option, the environment variable, or file, table and key; "" for a default.
    """

    key: str
    value: Any
    default: str
    source: Source
    where: str


def _read_file(context: typer.Context, path: Path | None) -> Path | None:
    """Make the verb's table of the file the defaults of its options; called before these are parsed."""
    if path is not None and not context.resilient_parsing:
        command: Any = context.command
        context.default_map = command.read_table(path)
    return path


#: parameter of a verb for the option --config, which is applied while the command line is parsed
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        f"--{_CONFIG}",
        metavar="FILE.toml",
        is_eager=True,
        callback=_read_file,
        help="File with options, as max-sessions = 100, in the table of this verb.",
    ),
]


class ConfigurableCommand(TyperCommand):
    """A command whose parameters can be set in a file and in the environment; see :func:`configurable`."""

    verb: ClassVar[Callable[..., None]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._prefix = f"SUFFIXSVC_{_constant(str(self.name))}_"
        shown: list[Any] = [each for each in self.params if not getattr(each, "hidden", False)]
        self._parameters = {_key(each): each for each in shown}
        for key, parameter in self._parameters.items():
            parameter.envvar = self._prefix + _constant(key)
            parameter.show_envvar = False  # the epilog has the rule
        self.epilog = (
            "Options can also be set in a file (--config) and by environment variables "
            f"(--ready-file: {self._prefix}READY_FILE): docs/configuration.md. "
            f"suffixsvc config show {self.name} shows where each one was set."
        )

    def read_table(self, path: Path) -> dict[str, Any]:
        """The verb's table of a file, by parameter.

        Raises:
            InvalidConfigError: names the file, and the invalid line or key.
        """
        from pydantic import BaseModel, ConfigDict, Field, create_model

        from suffixsvc.settings import read_toml

        form = ConfigDict(strict=True, extra="forbid", protected_namespaces=())
        types = file_types(self.verb)
        fields: dict[str, Any] = {
            f"option_{name}": (types[name], Field(None, alias=key))
            for key, name in ((key, str(each.name)) for key, each in self._parameters.items())
            if name != _CONFIG
        }
        own: type[BaseModel] = create_model("Options", __config__=form, **fields)
        tables: dict[str, Any] = {
            _constant(name): (own, Field(default_factory=own, alias=name))
            if name == self.name
            else (dict[str, Any], Field(default_factory=dict, alias=name))
            for name in TABLES
        }
        read = read_toml(create_model("Tables", __config__=form, **tables), path, "configuration file")
        found: BaseModel = getattr(read, _constant(str(self.name)))
        given = found.model_dump(mode="json", exclude_unset=True)
        return {name.removeprefix("option_"): value for name, value in given.items()}

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """Parse the command line.

        Raises:
            InvalidConfigError: the file or a variable is invalid.
        """
        try:
            context = super().make_context(info_name, args, parent=parent, **extra)
        except typer.BadParameter as error:
            at, parameter = error.ctx, error.param
            source, where = _origin(at, parameter)
            if source not in ("file", "environment") or at is None or parameter is None:
                raise
            given = os.environ.get(where) if source == "environment" else at.lookup_default(parameter.name)
            why = error.message.removeprefix("Value error, ").rstrip(".")
            raise InvalidConfigError(f"{where} must be valid: {why}", got=repr(given)) from None
        self._warn_of_unknown_variables()
        return context

    def _warn_of_unknown_variables(self) -> None:
        """Other programs set variables of such names, too: Kubernetes for a service "suffixsvc-serve"."""
        known = {self._prefix + _constant(key) for key in self._parameters}
        for name in sorted(os.environ.keys() - known):
            if name.startswith(self._prefix):
                closest = difflib.get_close_matches(name, known, 1)
                log.warning("environment variable sets no option", variable=name, closest=", ".join(closest))

    def invoke(self, ctx: Any) -> Any:
        """Run the verb. An error about an option says where that is set, if not on the command line."""
        try:
            return super().invoke(ctx)
        except InvalidConfigError as error:
            named = _OPTION.match(error.message)
            source, where = _origin(ctx, self._parameters.get(named[1]) if named else None)
            if source not in ("file", "environment"):
                raise
            remedy = f"It is set by {where}."
            raise error.with_remedy(f"{error.remedy} {remedy}" if error.remedy else remedy) from None

    def settings(self, args: Sequence[str]) -> list[Setting]:
        """Effective values of all options with these arguments; options that are required may be missing.

        Raises:
            InvalidConfigError: the file or a variable is invalid.
        """
        required = {each.name for each in self.params if each.required}
        for each in self.params:
            each.required = False
        context = self.make_context(self.name, list(args))
        found = []
        for key, parameter in self._parameters.items():
            default = getattr(parameter, "show_default", None)
            words = "must be set" if parameter.name in required else default
            source, where = _origin(context, parameter)
            value = context.params[parameter.name]
            found.append(Setting(key, value, words if isinstance(words, str) else "", source, where))
        return found


def configurable(verb: Callable[..., None]) -> type[ConfigurableCommand]:
    """The class of the typer command of a verb whose options can be set in a file and in the environment.

    Args:
        verb: made by :func:`suffixsvc.verb_options.with_options`; it has a parameter :data:`ConfigFile`.
    """
    return type("Command", (ConfigurableCommand,), {"verb": staticmethod(verb)})


def _origin(context: Any, parameter: Any) -> tuple[Source, str]:
    """Where the value of a parameter comes from, and the place there."""
    source = None if context is None or parameter is None else context.get_parameter_source(parameter.name)
    kind = _SOURCES.get("" if source is None else source.name, "default")
    key = "" if parameter is None else _key(parameter)
    place = {
        "default": "",
        "command line": key if parameter is None else max(parameter.opts, key=len),
        "environment": "" if parameter is None else parameter.envvar,
        "file": "" if context is None else f"{context.params.get(_CONFIG)} [{context.command.name}] {key}",
    }
    return kind, place[kind]


def _key(parameter: Any) -> str:
    """The key of a parameter in a file."""
    name: str = max(parameter.opts, key=len)
    return name.lstrip("-")


def _constant(name: str) -> str:
    """A name as part of an environment variable."""
    return name.upper().replace("-", "_")

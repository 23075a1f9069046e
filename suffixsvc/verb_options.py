"""Options of a verb as the fields of a dataclass, from which typer's parameters are derived.

    @dataclass(frozen=True, slots=True)
    class Options:
        calls: int = option(800, min=1, help="Timed calls.")
        modes: tuple[str, ...] = option(("hot", "cold"), "--mode", help="Mode. Repeatable. Default: both.")
        sizes: tuple[int, ...] = option("1M,10M", parse=parse_sizes, help="Comma-separated sizes.")

    @with_options
    def verb(options: Options, as_json: AsJson = False) -> None: ...

A field of type ``tuple[X, ...]`` is a repeatable option; without values the field has its default, which the
help does not show. Fields without :func:`option` or :func:`argument` are not options of the verb.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, cast, get_args, get_origin, get_type_hints

import typer

_KEY: Final = "typer"
_REQUIRED: Final = inspect.Parameter.empty
_KEYWORD: Final = inspect.Parameter.KEYWORD_ONLY

Parse = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class _Form:
    """A field on the command line: typer's description, the default there, and the parser of its text."""

    info: Any
    default: Any
    parse: Parse | None

    def value(self, given: Any) -> Any:
        """The field's value of what the command line has; None is an option that was not given."""
        given = self.default if given is None else given
        if isinstance(given, (list, tuple)):
            return tuple(given if self.parse is None else map(self.parse, given))
        return given if self.parse is None or given is None else self.parse(given)


def option(
    default: Any = _REQUIRED,
    *names: str,
    parse: Parse | None = None,
    panel: str | None = None,
    **settings: Any,
) -> Any:
    """A dataclass field that is an option of a verb.

    Args:
        default: as on the command line, before ``parse``.
        names: names of the option, if it is not named after the field.
        parse: makes the field's value from the text of the option, or of each one of a repeatable option.
        panel: heading of its part of the help.
        settings: arguments of ``typer.Option``.
    """
    return _field(_Form(typer.Option(*names, rich_help_panel=panel, **settings), default, parse))


def argument(default: Any = _REQUIRED, *, parse: Parse | None = None, **settings: Any) -> Any:
    """A dataclass field that is a positional argument of a verb; see :func:`option`."""
    return _field(_Form(typer.Argument(**settings), default, parse))


def _field(form: _Form) -> Any:
    metadata = {_KEY: form}
    if form.default is _REQUIRED:
        return dataclasses.field(metadata=metadata)
    # a parser may load modules that --help does not need
    return dataclasses.field(default_factory=lambda: form.value(None), metadata=metadata)


def with_options(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with a parameter for each option of its parameters that are dataclasses."""
    kinds = get_type_hints(verb, include_extras=True)
    made_of: dict[str, Any] = {name: kind for name, kind in kinds.items() if dataclasses.is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(verb).parameters.values():
        if parameter.name in made_of:
            parameters += _parameters(made_of[parameter.name])
        else:
            parameters.append(parameter.replace(annotation=kinds[parameter.name], kind=_KEYWORD))

    @functools.wraps(verb)
    def command(**given: Any) -> None:
        for name, kind in made_of.items():
            given[name] = kind(**{field: form.value(given.pop(field)) for field, form in _forms(kind)})
        verb(**given)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # read by inspect
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def file_types(verb: Callable[..., None]) -> dict[str, Any]:
    """Types of a verb's options in a configuration file, for a pydantic model, by parameter of the verb.

    They are those of the command line; where a text is parsed, a number is taken as its text.

    Args:
        verb: as :func:`with_options` returned it.
    """
    from pydantic import Field  # noqa: PLC0415 - slow to load

    types: dict[str, Any] = {}
    for kind in get_type_hints(inspect.unwrap(verb)).values():
        if not dataclasses.is_dataclass(kind):
            continue
        hints = get_type_hints(kind)
        for name, form in _forms(cast(type, kind)):
            annotation, _ = _typed(hints[name], form)
            number_as_text = Field(strict=False, coerce_numbers_to_str=True)
            types[name] = annotation if form.parse is None else Annotated[annotation, number_as_text]
    return types


def _forms(kind: type) -> Iterator[tuple[str, _Form]]:
    for field in dataclasses.fields(kind):
        if _KEY in field.metadata:
            yield field.name, field.metadata[_KEY]


def _parameters(kind: type) -> Iterator[inspect.Parameter]:
    types = get_type_hints(kind)
    for name, form in _forms(kind):
        annotation, default = _typed(types[name], form)
        described: Any = Annotated[annotation, form.info]
        yield inspect.Parameter(name, _KEYWORD, default=default, annotation=described)


def _typed(kind: Any, form: _Form) -> tuple[Any, Any]:
    """Type and default of a field for typer."""
    if get_origin(kind) is tuple and not isinstance(form.default, str):
        repeated: Any = list[str if form.parse else get_args(kind)[0]]  # type: ignore[misc] # a type at run time
        return (repeated, _REQUIRED) if form.default is _REQUIRED else (repeated | None, None)
    if form.parse is None:
        return kind, form.default
    return (str | None if form.default is None else str), form.default

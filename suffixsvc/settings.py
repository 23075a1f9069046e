"""Settings of files and mappings, validated by pydantic, with errors that name their key and value.

The form of a file is a dataclass or a pydantic model. Values have the types of the fields, without conversion
other than that of a text to an enumeration; an unknown key is an error.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from suffixsvc.errors import InvalidConfigError, SuffixError

T = TypeVar("T")


def read_toml(kind: type[T], path: str | os.PathLike[str], what: str) -> T:
    """Read a TOML file of the form of a dataclass or pydantic model.

    Args:
        kind: the form. Its ``__post_init__`` may raise an error whose message begins with a field's name.
        path: the file.
        what: name of the file's kind in errors, as "policies file".

    Raises:
        InvalidConfigError: names the file, and the invalid line or key.
    """
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfigError(
            f"{what} {path} must be readable", expected="a TOML file", got=error.strerror
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidConfigError(
            f"{what} {path} must be valid TOML", expected="a TOML file", got=error
        ) from None
    return read_mapping(kind, tables, f"{what} {path}")


def read_mapping(kind: type[T], values: Mapping[str, Any], what: str) -> T:
    """Read values of the form of a dataclass or pydantic model. ``what`` names them in errors.

    Raises:
        InvalidConfigError: names the invalid key.
    """
    # a union, because the settings of pydantic apply to a dataclass only from outside; JSON, because strict
    # validation takes tables for dataclasses and texts for enumerations only from JSON
    form: TypeAdapter[T] = TypeAdapter(
        cast(type[T], kind | None), config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    )
    try:
        return form.validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        raise _invalid(error.errors()[0], what, form) from None


def _invalid(error: ErrorDetails, what: str, form: TypeAdapter[Any]) -> InvalidConfigError:
    value, location = error["input"], [str(part) for part in error["loc"]]
    cause = error.get("ctx", {}).get("error")
    expected: object = error["msg"].removeprefix("Input should be ")
    got: object = repr(value)[:200]
    remedy, condition = None, ""
    if isinstance(cause, SuffixError):
        name = cause.message.split(" ", 1)[0]
        location += [name] if isinstance(value, dict) and name in value else []
        expected, got, remedy, condition = cause.expected, cause.got, cause.remedy, f": {cause.message}"
    elif error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        expected, got = ", ".join(_keys(form.json_schema(), location[:-1])), location[-1]
        if isinstance(value, dict) and len(location) > 1:
            remedy = 'A name with "/" or "." stands in quotes: [table."a/b.c"].'
    key = ".".join(part if part.replace("-", "").isidentifier() else f'"{part}"' for part in location)
    if error["type"] in ("dataclass_type", "model_type", "dict_type"):
        expected = f"a table, as in [{key}]"
    where = f" at {key}" if key else ""
    return InvalidConfigError(
        f"{what} must be valid{where}{condition}", expected=expected, got=got, remedy=remedy
    )


def _keys(schema: dict[str, Any], location: list[str]) -> list[str]:
    """The valid keys of the table at a location."""
    table = schema
    for part in [None, *location]:
        if part is not None:
            table = table["properties"].get(part) if "properties" in table else table["additionalProperties"]
        if "anyOf" in table:
            table = next(each for each in table["anyOf"] if each.get("type") != "null")
        if "$ref" in table:
            table = schema["$defs"][table["$ref"].rsplit("/", 1)[1]]
    return list(table["properties"])

"""What a recipe says: a TOML file in the folder of what it makes.

about = "SQL queries over many schemas"
tokenizer = "xxh3:..."            # fingerprint that all ids must have

[logs]
paths = ["../logs/sql.jsonl.gz"]  # from the folder of the recipe
kind_field = "meta.split"         # and every other option of reading: docs/logs.md
kinds = ["train"]

[static]
budget = "200K"
context_tokens = 3                # of prompts, that n-grams may begin in
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import InvalidConfigError
from suffixsvc_caches.logs import ReadOptions
from suffixsvc_caches.sizes import parse_size

__all__ = ["READY_MADE", "Recipe", "find_recipe"]

_FOLDER: Final = Path(__file__).parent
_FILE: Final = "recipe.toml"
#: the recipes that come with this package
READY_MADE: Final = ("sql", "json", "code")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe.

    Attributes:
        folder: where it is, and where what it makes goes; its name is the recipe's.
        about: one line for people.
        tokenizer: fingerprint that all ids must have.
        logs: files and folders.
        reading: how to read them, and which calls.
        static_budget_bytes: size of the static cache; None: all of it.
        context_tokens: tokens of prompts that n-grams may begin in.
    """

    folder: Path
    about: str
    tokenizer: str
    logs: tuple[Path, ...]
    reading: ReadOptions
    static_budget_bytes: int | None
    context_tokens: int

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def static(self) -> Path:
        """The lookup cache for llama.cpp."""
        return self.folder / f"{self.name}.static.bin"

    @property
    def corpus(self) -> Path:
        """The calls for the service: a recording of token ids, with the ends of the prompts."""
        return self.folder / f"{self.name}.corpus.jsonl.gz"

    @classmethod
    def load(cls, folder: Path) -> Recipe:
        """Read the recipe of a folder.

        Raises:
            InvalidConfigError: it names the file, and what is wrong with it.
        """
        path = folder / _FILE
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidConfigError(f"cannot read the recipe {path}", got=error) from None
        try:
            return cls._from(folder.resolve(), tables)
        except InvalidConfigError as error:
            raise InvalidConfigError(
                f"{path}: {error.message}", expected=error.expected, got=error.got
            ) from None
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidConfigError(
                f"{path} is no recipe", expected="about, tokenizer, [logs] with paths, [static]", got=error
            ) from None

    @classmethod
    def _from(cls, folder: Path, tables: dict[str, Any]) -> Recipe:
        unknown = set(tables) - {"about", "tokenizer", "logs", "static"}
        static = dict(tables.get("static", {}))
        unknown |= {f"static.{name}" for name in set(static) - {"budget", "context_tokens"}}
        if unknown:
            raise InvalidConfigError("a recipe says something unknown", got=", ".join(sorted(unknown)))
        logs = dict(tables["logs"])
        paths = logs.pop("paths")
        if "batch_input" in logs:
            logs["batch_input"] = [folder / path for path in logs["batch_input"]]
        budget = static.get("budget")
        return cls(
            folder,
            str(tables["about"]),
            str(tables["tokenizer"]),
            tuple(folder / path for path in paths),
            ReadOptions.parse(**logs),
            None if budget is None else parse_size(str(budget), "static.budget"),
            int(static.get("context_tokens", 0)),
        )


def find_recipe(name: str) -> Recipe:
    """A recipe of this package by its name, or anybody's by its folder.

    Raises:
        InvalidConfigError: there is none.
    """
    folder = _FOLDER / name if name in READY_MADE else Path(name)
    if not (folder / _FILE).is_file():
        raise InvalidConfigError(
            f"there is no recipe {name!r}",
            expected=f"{', '.join(READY_MADE)}, or a folder with a {_FILE}",
            got=name,
        )
    return Recipe.load(folder)

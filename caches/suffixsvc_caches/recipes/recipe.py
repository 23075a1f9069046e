"""Recipe files: TOML in the folder of the recipe's caches.

about = "SQL queries over many schemas"
tokenizer = "xxh3:..."            # fingerprint that all ids must have

[logs]
paths = ["../logs/sql.jsonl.gz"]  # relative to the folder of the recipe
kind_field = "meta.split"         # this and all other options of reading: docs/logs.md
kinds = ["train"]

[static]
budget = "200K"
context_tokens = 3                # prompt tokens in which n-grams may begin
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import InvalidConfigError
from suffixsvc_caches.errors import at_place
from suffixsvc_caches.logs import ReadOptions
from suffixsvc_caches.sizes import parse_size

_FOLDER: Final = Path(__file__).parent
_FILE: Final = "recipe.toml"
#: the recipes that come with this package
READY_MADE: Final = ("sql", "json", "code")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe.

    Attributes:
        folder: folder of the recipe and its caches; its name is the recipe's.
        about: description, one line.
        tokenizer: fingerprint that all ids must have.
        logs: files and folders.
        reading: options of reading, filters included.
        static_budget_bytes: size limit of the static cache; None = no limit.
        context_tokens: prompt tokens, from the end, in which n-grams may begin.
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
        """Name of the recipe."""
        return self.folder.name

    @property
    def static(self) -> Path:
        """Path of the lookup cache for llama.cpp."""
        return self.folder / f"{self.name}.static.bin"

    @property
    def corpus(self) -> Path:
        """Path of the corpus for the service: a recording of token ids, with the ends of the prompts."""
        return self.folder / f"{self.name}.corpus.jsonl.gz"

    @classmethod
    def load(cls, folder: Path) -> Recipe:
        """Read the recipe of a folder.

        Raises:
            InvalidConfigError: the file cannot be read, or is malformed.
        """
        path = folder / _FILE
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidConfigError(f"cannot read the recipe {path}", got=error) from None
        try:
            return cls._from(folder.resolve(), tables)
        except InvalidConfigError as error:
            raise at_place(path, error) from None
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidConfigError(
                f"{path} must have about, tokenizer and [logs] with paths", got=error
            ) from None

    @classmethod
    def _from(cls, folder: Path, tables: dict[str, Any]) -> Recipe:
        unknown = set(tables) - {"about", "tokenizer", "logs", "static"}
        static = dict(tables.get("static", {}))
        unknown |= {f"static.{name}" for name in set(static) - {"budget", "context_tokens"}}
        if unknown:
            raise InvalidConfigError("unknown keys", got=", ".join(sorted(unknown)))
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
    """Load a recipe of this package by name, or any recipe by folder.

    Raises:
        InvalidConfigError: there is no such recipe, or it is malformed.
    """
    folder = _FOLDER / name if name in READY_MADE else Path(name)
    if not (folder / _FILE).is_file():
        raise InvalidConfigError(
            f"a recipe must be {', '.join(READY_MADE)}, or a folder with a {_FILE}", got=name
        )
    return Recipe.load(folder)

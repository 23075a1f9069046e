"""``suffixsvc cache make``: caches of a recipe."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from suffixsvc_cli.base.options import AsJson


def make(
    recipes: Annotated[
        list[str],
        typer.Argument(help="Folders with a recipe.toml, or names of shipped recipes: sql, json, code."),
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace existing caches.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make small caches from logs by a recipe: a static cache for llama.cpp, a corpus for the service.

    The caches are written beside the recipe, for suffixsvc serve --preload FOLDER and llama-server -lcs
    NAME.static.bin. The shipped recipes are made from logs in the project's source tree.
    """
    from suffixsvc_caches.recipes import find_recipe, make_recipe
    from suffixsvc_caches.sizes import format_size

    made = {name: (recipe := find_recipe(name), make_recipe(recipe, force=force)) for name in recipes}
    if as_json:
        plain = {
            name: {
                "calls": each.calls,
                "tokens": each.tokens,
                "corpus_bytes": each.corpus_bytes,
                "static_bytes": each.static.manifest.bytes if each.static else 0,
            }
            for name, (_, each) in made.items()
        }
        typer.echo(json.dumps(plain, indent=2))
        return
    for recipe, each in made.values():
        static = format_size(each.static.manifest.bytes) if each.static else "none"
        typer.echo(
            f"{recipe.name}: {each.calls:,} calls, {each.tokens:,} tokens; "
            f"corpus {format_size(each.corpus_bytes)}, static cache {static} in {recipe.folder}"
        )

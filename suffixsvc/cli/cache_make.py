"""``suffixsvc cache make``: what a recipe says."""

from __future__ import annotations

import json
from typing import Annotated

import typer

__all__ = ["make"]


def make(
    recipes: Annotated[
        list[str],
        typer.Argument(help="Folders with a recipe.toml, or of those that come along: sql, json, code."),
    ],
    force: Annotated[bool, typer.Option("--force", help="Make again what is there already.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Make small caches from logs as recipes say: a static cache for llama.cpp, a corpus for the service.

    What is made lies beside the recipe: suffixsvc serve --preload FOLDER, llama-server -lcs NAME.static.bin.
    The recipes that come along are made from logs in the project's source tree.
    """
    from suffixsvc_caches.recipes import find_recipe, make_recipe
    from suffixsvc_caches.sizes import show_size

    made = {name: (recipe := find_recipe(name), make_recipe(recipe, force=force)) for name in recipes}
    if as_json:
        plain = {
            name: {
                "calls": each.calls,
                "tokens": each.tokens,
                "corpus_bytes": each.corpus_bytes,
                "static_bytes": each.static.size_bytes if each.static else 0,
            }
            for name, (_, each) in made.items()
        }
        typer.echo(json.dumps(plain, indent=2))
        return
    for recipe, each in made.values():
        static = show_size(each.static.size_bytes) if each.static else "nothing"
        typer.echo(
            f"{recipe.name}: {each.calls:,} calls, {each.tokens:,} tokens; "
            f"corpus {show_size(each.corpus_bytes)}, static cache {static} in {recipe.folder}"
        )

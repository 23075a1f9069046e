"""Recipes: small caches that are made from logs the same way every time, and come ready-made.

    recipes/sql/recipe.toml          which logs, which calls, how large
                sql.static.bin       for llama.cpp: --lookup-cache-static
                sql.static.bin.manifest.json
                sql.corpus.jsonl.gz  for the service: suffixsvc serve --preload sql

``make caches`` makes those of this package again, ``suffixsvc cache make FOLDER`` anybody's own.
"""

from suffixsvc_caches.recipes.make import make_recipe
from suffixsvc_caches.recipes.preload import find_recipes, preload
from suffixsvc_caches.recipes.recipe import READY_MADE, Recipe, find_recipe

__all__ = ["READY_MADE", "Recipe", "find_recipe", "find_recipes", "make_recipe", "preload"]

"""Recipes: reproducible builds of small caches from logs, with ready-made caches for three domains.

    recipes/sql/recipe.toml          logs, filters and size
                sql.static.bin       for llama.cpp: --lookup-cache-static
                sql.static.bin.manifest.json
                sql.corpus.jsonl.gz  for the service: suffixsvc serve --preload sql

``make caches`` rebuilds those of this package, ``suffixsvc cache make FOLDER`` builds any recipe.
"""

from suffixsvc_caches.recipes.make import make_recipe
from suffixsvc_caches.recipes.preload import find_recipes, preload
from suffixsvc_caches.recipes.recipe import READY_MADE, Recipe, find_recipe

__all__ = ["READY_MADE", "Recipe", "find_recipe", "find_recipes", "make_recipe", "preload"]

"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["InsecureNetwork", "LogTokenizer", "PageOfPlots"]

InsecureNetwork = Annotated[
    bool,
    typer.Option(
        "--insecure-network",
        help="Allow listening on addresses that other machines can reach, without authentication or "
        "encryption.",
    ),
]
LogTokenizer = Annotated[
    Path | None,
    typer.Option(
        help="Tokenizer for logs of texts: the model's GGUF or name, or a tokenizer.json (plain or .gz)."
    ),
]
PageOfPlots = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a self-contained HTML page with plots.")
]

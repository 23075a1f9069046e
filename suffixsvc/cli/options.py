"""Options that several verbs have, each said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["InsecureNetwork", "LogTokenizer", "PageOfPlots"]

InsecureNetwork = Annotated[
    bool,
    typer.Option(
        "--insecure-network",
        help="Allow addresses that other machines can reach, without authentication or encryption.",
    ),
]
LogTokenizer = Annotated[
    Path | None,
    typer.Option(
        help="The model's GGUF or its name, or a tokenizer.json (plain or .gz), for logs that hold texts."
    ),
]
PageOfPlots = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write one self-contained HTML page with plots.")
]

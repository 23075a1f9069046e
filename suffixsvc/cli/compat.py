"""``suffixsvc compat TARGET [DRAFT]``: can a model draft for another, and which of those here can."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["compat"]


def compat(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="The model to be sped up: a GGUF, or a known name.")
    ],
    draft: Annotated[
        str, typer.Argument(metavar="[DRAFT]", help="The model that would draft for it.", show_default=False)
    ] = "",
    scan: Annotated[
        list[Path] | None,
        typer.Option("--scan", metavar="FOLDER", help="Try every GGUF below a folder; may be repeated."),
    ] = None,
    ollama: Annotated[
        bool, typer.Option("--ollama", help="Try every model of Ollama's store ($OLLAMA_MODELS).")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Say whether a draft model's tokens can be verified by a target, rule by rule.

    A draft model must mean the same by every token id. The rules are llama.cpp's own: the same kind of
    vocabulary, the same first and last token, about the same size, the same text for every id. The same
    family is not enough. --scan and --ollama look for models that fit, the cheapest first.

    The exit code is 0 where a model fits, and 1 where none does.
    """
    from suffixsvc_driver.compatibility import compare_models, read_facts
    from suffixsvc_driver.models import resolve
    from suffixsvc_driver.models.scanning import candidates, scan_drafts

    from suffixsvc.cli.bars import progress_bar
    from suffixsvc.cli.compat_show import pair_as_plain, print_pair, print_scan
    from suffixsvc.errors import InvalidConfigError

    scanning = bool(scan or ollama)
    if bool(draft) == scanning:
        raise InvalidConfigError(
            "there is nothing to compare" if not draft else "a draft and a scan at the same time",
            expected="either a DRAFT, or --scan FOLDER or --ollama",
        )
    target_path = resolve(target)
    if draft:
        pair = compare_models(read_facts(target_path), read_facts(resolve(draft)))
        plain: Any = pair_as_plain(pair)
        fits = pair.fits
    else:
        found = candidates(scan or [], ollama=ollama)
        with progress_bar("looking at models", len(found)) as progress:
            tried = scan_drafts(target_path, found, progress)
        plain = [each.as_plain() for each in tried]
        fits = any(each.fits for each in tried)
    if as_json:
        typer.echo(json.dumps(plain, indent=2))
    elif draft:
        print_pair(pair)
    else:
        print_scan(target, tried)
    raise typer.Exit(0 if fits else 1)

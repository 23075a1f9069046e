"""``suffixsvc compat TARGET [DRAFT]``: can a model draft for another, and which of those here can."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from suffixsvc_driver.compatibility import Compatibility
    from suffixsvc_driver.pair_cost import PairCost

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
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Measure what a drafted token and a step of the target cost here, and say from which "
            "acceptance drafting pays. Takes as long as suffixsvc probe, once; run nothing beside it.",
        ),
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="To measure on. Default: as many as there are physical cores."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Say whether a draft model's tokens can be verified by a target, rule by rule.

    A draft model must mean the same by every token id. The rules are llama.cpp's own: the same kind of
    vocabulary, the same first and last token, about the same size, the same text for every id. The same
    family is not enough. A model with another vocabulary can still draft through text: its drafts are cut
    into the target's tokens. What that loses is tried on a few texts. --scan and --ollama look for models
    that can draft, the cheapest first, by the bytes they read or, with --measure, by the time they take.

    The exit code is 0 where a model fits, and 1 where none does, whether or not one can draft through text.
    """
    from suffixsvc_driver.compatibility import compare_files
    from suffixsvc_driver.machine import usable_cores
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
    if threads and not measure:
        raise InvalidConfigError("threads for nothing that is measured", expected="--measure", got=threads)
    target_path = resolve(target)
    cores = threads or usable_cores()
    if draft:
        pair = compare_files(target_path, resolve(draft))
        cost = _measured(pair, cores) if measure else None
        plain: Any = pair_as_plain(pair, cost)
        fits = pair.fits
    else:
        found = candidates(scan or [], ollama=ollama)
        with progress_bar("measuring models" if measure else "looking at models", len(found)) as progress:
            tried = scan_drafts(target_path, found, progress, measure=cores if measure else None)
        plain = [each.as_plain() for each in tried]
        fits = any(each.fits for each in tried)
    if as_json:
        typer.echo(json.dumps(plain, indent=2))
    elif draft:
        print_pair(pair, cost)
    else:
        print_scan(target, tried)
    raise typer.Exit(0 if fits else 1)


def _measured(pair: Compatibility, threads: int) -> PairCost | None:
    """None where there is nothing to measure: no weights, or tokens that the target could not verify."""
    from suffixsvc_driver.pair_cost import measure_pair

    from suffixsvc.cli.bars import progress_bar

    if not pair.usable or not pair.draft.header.weights or not pair.target.header.weights:
        return None
    with progress_bar("measuring what a step costs") as bar:
        return measure_pair(
            pair.target.path, pair.draft.path, threads=threads, token_ratio=pair.token_ratio, progress=bar
        )

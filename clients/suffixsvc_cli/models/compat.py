"""``suffixsvc compat TARGET [DRAFT]``: compatibility of a draft model, and search for compatible ones."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from suffixsvc.errors import InvalidConfigError
from suffixsvc.verb_options import argument, option, with_options
from suffixsvc_cli.base.options import AsJson

if TYPE_CHECKING:
    from suffixsvc_driver.profile.pair_compatibility import Compatibility
    from suffixsvc_driver.profile.pair_cost import PairCost


@dataclass(frozen=True, slots=True)
class CompatOptions:
    """The command line."""

    target: str = argument(metavar="TARGET", help="Target model: a GGUF, or a registry name.")
    draft: str = argument("", metavar="[DRAFT]", help="Draft model.", show_default=False)
    scan: tuple[Path, ...] = option((), metavar="FOLDER", help="Check every GGUF below a folder. Repeatable.")
    ollama: bool = option(False, "--ollama", help="Check every model of Ollama's store ($OLLAMA_MODELS).")
    measure: bool = option(
        False,
        "--measure",
        help="Measure the cost of a drafted token and of a step of the target on this machine, and the "
        "acceptance from which drafting pays. Takes as long as suffixsvc probe, once; run nothing else "
        "meanwhile.",
    )
    threads: int | None = option(None, min=1, help="Threads of --measure. Default: one per physical core.")

    def __post_init__(self) -> None:
        if bool(self.draft) == bool(self.scan or self.ollama):
            raise InvalidConfigError(
                "either DRAFT, or --scan FOLDER or --ollama must be given",
                got="both" if self.draft else "neither",
            )
        if self.threads and not self.measure:
            raise InvalidConfigError("--threads must be given with --measure only", got=self.threads)


@with_options
def compat(options: CompatOptions, as_json: AsJson = False) -> None:
    """Check whether a target can verify a draft model's tokens, rule by rule.

    Every token id must have the same meaning in both models. The rules are llama.cpp's own: the same kind of
    vocabulary, the same BOS and EOS tokens, about the same size, the same text for every id. The same model
    family is not sufficient. A model with another vocabulary can still draft through text: its drafts are
    tokenised for the target. The loss is measured on a few texts. --scan and --ollama search for compatible
    models, the cheapest first, by the bytes they read or, with --measure, by time.

    The exit code is 0 if a model is compatible, and 1 if none is, whether or not one can draft through text.
    """
    from suffixsvc_cli.base.bars import progress_bar
    from suffixsvc_cli.models.compat_show import pair_to_dict, print_pair, print_scan
    from suffixsvc_driver.profile.pair_compatibility import compare_files
    from suffixsvc_driver.targets.llama.machine import usable_cores
    from suffixsvc_models import resolve
    from suffixsvc_models.finding import find_in_folders, find_in_ollama
    from suffixsvc_models.scanning import scan_drafts

    target_path = resolve(options.target)
    cores = options.threads or usable_cores()
    if options.draft:
        pair = compare_files(target_path, resolve(options.draft))
        cost = _measured(pair, cores) if options.measure else None
        plain: Any = pair_to_dict(pair, cost)
        fits = pair.fits
    else:
        found = [*find_in_folders(options.scan), *(find_in_ollama() if options.ollama else ())]
        title = "measuring models" if options.measure else "checking models"
        with progress_bar(title, len(found)) as progress:
            tried = scan_drafts(target_path, found, progress, measure=cores if options.measure else None)
        plain = [asdict(each) for each in tried]
        fits = any(each.fits for each in tried)
    if as_json:
        typer.echo(json.dumps(plain, indent=2))
    elif options.draft:
        print_pair(pair, cost)
    else:
        print_scan(options.target, tried)
    raise typer.Exit(0 if fits else 1)


def _measured(pair: Compatibility, threads: int) -> PairCost | None:
    """Measured cost; None without weights, or for tokens that the target cannot verify."""
    from suffixsvc_cli.base.bars import progress_bar
    from suffixsvc_driver.profile.pair_cost import measure_pair

    if not pair.usable or not pair.draft.header.weights or not pair.target.header.weights:
        return None
    with progress_bar("measuring the cost of steps") as bar:
        return measure_pair(
            pair.target.path, pair.draft.path, threads=threads, token_ratio=pair.token_ratio, progress=bar
        )

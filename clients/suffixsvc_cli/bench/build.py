"""``suffixsvc bench build``: cost of building caches, and hits of pruned caches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

__all__ = ["bench_build"]

_DEMO_LOG: Final = Path("tests/data/recorded_demo.jsonl.gz")


def bench_build(
    section: Annotated[
        list[str] | None,
        typer.Option(
            help="Section to run: tokens, text, memory, export, pruning, llama or cluster. Repeatable. "
            "Default: all.",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[str, typer.Option(help="Synthetic tokens to count.")] = "10M",
    memory_tokens: Annotated[
        str, typer.Option(help="Synthetic tokens to count under each --memory.")
    ] = "100M",
    memory: Annotated[
        list[str] | None,
        typer.Option(help="Memory limit of a build. Repeatable. Default: 1G and 512M.", show_default=False),
    ] = None,
    records: Annotated[str, typer.Option(help="Approximate number of n-grams to export.")] = "10M",
    logs: Annotated[
        list[Path] | None,
        typer.Option(
            help="Log whose last fifth is held out to evaluate pruned caches. Repeatable. Default: the log "
            "in tests/data, if it exists.",
            show_default=False,
        ),
    ] = None,
    tokenizer: Annotated[
        list[Path] | None,
        typer.Option(
            help="tokenizer.json or GGUF for builds from text; the first is also used for --logs. Repeatable."
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="Text to tokenise. Default: the source of Python's standard library."),
    ] = None,
    text_size: Annotated[str, typer.Option(help="Number of characters of --text to use.")] = "10M",
    llama_bin: Annotated[
        Path | None, typer.Option(help="Folder with llama-lookup-create for a comparison.")
    ] = None,
    target: Annotated[Path | None, typer.Option(help="GGUF for the comparison.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the comparison.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the synthetic texts.")] = 1,
    folder: Annotated[
        Path | None,
        typer.Option(help="Parent of the scratch folder (about 80 bytes per token, removed at the end)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure building caches: tokens per second, memory, export, pruning, and llama.cpp's own tool.

    Each measurement is a separate process. Token ids are synthetic and reproducible from --seed; they repeat
    phrases as agents do. Sections whose inputs are missing (a tokenizer, logs, programs) are skipped.
    """
    from suffixsvc_bench.build.options import SECTIONS, BuildBenchOptions
    from suffixsvc_bench.build.run import run_build_bench
    from suffixsvc_bench.report.output import ProgressReporter, require_folder
    from suffixsvc_caches.sizes import parse_size

    require_folder(folder)
    options = BuildBenchOptions(
        sections=tuple(section) if section else SECTIONS,
        tokens=_number(tokens, "--tokens"),
        memory_tokens=_number(memory_tokens, "--memory-tokens"),
        memories=tuple(parse_size(each, "--memory") for each in memory or ("1G", "512M")),
        records=_number(records, "--records"),
        text_bytes=_number(text_size, "--text-size"),
        text=text,
        logs=tuple(logs or ([_DEMO_LOG] if _DEMO_LOG.is_file() else [])),
        tokenizers=tuple(tokenizer or ()),
        llama_bin=llama_bin,
        target=target,
        rounds=rounds,
        seed=seed,
        folder=folder,
    )
    with ProgressReporter() as progress:
        results = run_build_bench(options, progress.update)
    if as_json:
        typer.echo(json.dumps(results, indent=2))
    else:
        _print(results)


def _number(text: str, option: str) -> int:
    """Parse a number with a suffix: ``10M`` -> 10,000,000."""
    from suffixsvc.errors import InvalidInputError

    factor = {"K": 1_000, "M": 1_000_000}.get(text[-1:].upper(), 1)
    digits = text[:-1] if factor > 1 else text
    if not digits.isdecimal():
        raise InvalidInputError(f"{option} must be a number", expected="e.g. 500K or 10M", got=text[:80])
    return int(digits) * factor


def _print(results: dict[str, Any]) -> None:
    from rich.console import Console

    from suffixsvc_bench.build.tables import build_grids
    from suffixsvc_bench.report.provenance import Provenance
    from suffixsvc_bench.report.tables import print_grid

    console = Console()
    for grid in build_grids(results):
        print_grid(console, grid)
    line = f"seed {results['options']['seed']}, {Provenance(**results['provenance']).line()}"
    console.print(line, style="dim", highlight=False, soft_wrap=True)

"""``suffixsvc bench build``: what building caches costs, and what they are worth."""

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
            help="Only this: tokens, text, memory, export, pruning, llama or cluster. Repeatable.",
        ),
    ] = None,
    tokens: Annotated[str, typer.Option(help="Token ids to make up and count.")] = "10M",
    memory_tokens: Annotated[str, typer.Option(help="Token ids to count in each --memory.")] = "100M",
    memory: Annotated[
        list[str] | None,
        typer.Option(help="Memory of a build. Repeatable. Default: 1G and 512M.", show_default=False),
    ] = None,
    records: Annotated[str, typer.Option(help="n-grams to export, about.")] = "10M",
    logs: Annotated[
        list[Path] | None,
        typer.Option(
            help="A log whose last fifth is held out, to judge pruned caches by. Repeatable. Default: the "
            "one in tests/data, where that is.",
            show_default=False,
        ),
    ] = None,
    tokenizer: Annotated[
        list[Path] | None,
        typer.Option(
            help="A tokenizer.json or GGUF to build from texts with; the first also reads --logs. Repeatable."
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="The text to tokenise. Default: the source of Python's standard library."),
    ] = None,
    text_size: Annotated[str, typer.Option(help="So much of it, in characters.")] = "10M",
    llama_bin: Annotated[
        Path | None, typer.Option(help="Folder with llama-lookup-create, to compare with.")
    ] = None,
    target: Annotated[Path | None, typer.Option(help="The GGUF for that comparison.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of either program there.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Of what is made up.")] = 1,
    folder: Annotated[
        Path | None,
        typer.Option(help="Work below this folder (about 80 bytes a token, removed again)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Measure building caches: tokens a second, memory, export, what pruning costs, llama.cpp's own tool.

    Each measurement is a process of its own. Token ids are made up and reproducible from --seed; they repeat
    phrases as agents do. Sections without what they need (a tokenizer, logs, programs) are left out.
    """
    from suffixsvc_bench.build_bench.options import SECTIONS, BuildBenchOptions
    from suffixsvc_bench.build_bench.run import run_build_bench
    from suffixsvc_bench.output import Told, require_folder
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
    with Told() as told:
        results = run_build_bench(options, told.share)
    if as_json:
        typer.echo(json.dumps(results, indent=2))
    else:
        _print(results)


def _number(text: str, what: str) -> int:
    """``10M`` -> 10,000,000."""
    from suffixsvc.errors import InvalidInputError

    factor = {"K": 1_000, "M": 1_000_000}.get(text[-1:].upper(), 1)
    digits = text[:-1] if factor > 1 else text
    if not digits.isdecimal():
        raise InvalidInputError(f"{what} is no number", expected="e.g. 500K or 10M", got=text[:80])
    return int(digits) * factor


def _print(results: dict[str, Any]) -> None:
    from rich.console import Console
    from suffixsvc_bench.build_bench.tables import build_grids
    from suffixsvc_bench.provenance import Provenance
    from suffixsvc_bench.tables import print_grid

    console = Console()
    for grid in build_grids(results):
        print_grid(console, grid)
    line = f"seed {results['options']['seed']}, {Provenance(**results['provenance']).line()}"
    console.print(line, style="dim", highlight=False, soft_wrap=True)

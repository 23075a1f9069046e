"""``suffixsvc cache forecast``: acceptance of a lookup cache in llama.cpp, simulated on logs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from suffixsvc_cli.cache.look import BosToken, EosToken, TokenizerPath

if TYPE_CHECKING:
    from rich.progress import Progress

    from suffixsvc_caches.lookup.replay import Program, ReplayStats
    from suffixsvc_caches.simulation import CacheSimulation, TokenLogs

__all__ = ["forecast"]

_PROGRAMS: Final = "server, lookup or stats"
_CHUNK: Final = 4096


def forecast(
    file: Annotated[Path, typer.Argument(help="Lookup cache.")],
    logs: Annotated[
        list[Path], typer.Argument(help="Logs of the model's outputs that are not part of the cache.")
    ],
    tokenizer: TokenizerPath = None,
    bos: BosToken = None,
    eos: EosToken = None,
    dynamic: Annotated[Path | None, typer.Option(help="Dynamic cache to use with the static one.")] = None,
    kind: Annotated[str, typer.Option("--as", help="Kind of FILE: static, dynamic, or auto.")] = "auto",
    program: Annotated[
        str,
        typer.Option(
            help=f"Program to simulate: {_PROGRAMS}. llama-lookup-stats reads a log as one text in chunks; "
            "the others read each call with its prompt; llama-server learns almost nothing from its "
            "output."
        ),
    ] = "server",
    ctx: Annotated[
        int | None,
        typer.Option(
            min=2, help=f"Tokens of a chunk, with --program stats. Default: {_CHUNK}.", show_default=False
        ),
    ] = None,
    draft: Annotated[int, typer.Option(min=1, help="Maximum draft length; llama-server has 8.")] = 8,
    log_format: Annotated[
        str, typer.Option("--format", help="Format of the logs' records; docs/logs.md.")
    ] = "auto",
    batch_input: Annotated[
        list[Path] | None,
        typer.Option(help="Input file of an OpenAI batch, for prompts. Repeatable."),
    ] = None,
    agent: Annotated[list[str] | None, typer.Option(help="Use only calls of this agent. Repeatable.")] = None,
    max_tokens: Annotated[
        int, typer.Option(min=0, help="Maximum response tokens of all logs; 0 = no limit.")
    ] = 1_000_000,
    plot: Annotated[
        Path | None,
        typer.Option(help="Plot hit rate against file size, for the cache pruned to ten sizes (SVG)."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the plot.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Simulate what llama.cpp would accept with a lookup cache, from logs, without running a model.

    Drafts by llama.cpp's own rules from the context, dynamic and static caches, as llama-server does unless
    --program names another program, and prints the results with and without the cache. "hit rate" is the
    share of tokens that were drafted correctly, "MAT" the mean tokens per step of the model. Takes about half
    a minute per million tokens, for each of the two runs, and ten times as long with --plot.
    """
    from suffixsvc.errors import InvalidConfigError
    from suffixsvc.plots.files import svg_file
    from suffixsvc_caches.atomic import new_file, require_new
    from suffixsvc_caches.cache_files import cache_format, load_cache
    from suffixsvc_caches.logs import ReadOptions, ReadReport
    from suffixsvc_caches.lookup.replay import Program
    from suffixsvc_caches.manifest import CacheFormat
    from suffixsvc_caches.simulation import read_token_logs, simulate_cache, size_chart
    from suffixsvc_caches.tokenizers import load_tokenizer

    programs = {"server": Program.SERVER, "lookup": Program.LOOKUP, "stats": Program.STATS}
    if program not in programs:
        raise InvalidConfigError("--program must be known", expected=_PROGRAMS, got=program[:80])
    if ctx is not None and program != "stats":
        raise InvalidConfigError("--ctx must be given with --program stats only", got=program)
    if plot is not None:
        require_new(plot, force=force)
    codec = load_tokenizer(tokenizer, bos=bos, eos=eos) if tokenizer else None
    fingerprint = codec.fingerprint if codec else ""
    table, manifest = load_cache(file, fingerprint)
    is_static = cache_format(table, manifest, kind) is CacheFormat.STATIC
    if not is_static and (dynamic is not None or plot is not None):
        raise InvalidConfigError(
            f"{file} must be a static cache with --dynamic or --plot",
            got="a dynamic cache",
            remedy="--as static reads it as a static cache.",
        )
    beside = load_cache(dynamic, fingerprint)[0] if dynamic is not None else None
    reading = ReadOptions.parse(
        format=log_format,
        agents=agent or (),
        want_prompt=program != "stats",
        batch_input=batch_input or (),
    )
    report = ReadReport()
    calls = read_token_logs(logs, reading, codec, report, max_tokens=max_tokens)
    typer.echo(report.describe(), err=True)
    with _bars() as bars:
        found = simulate_cache(
            calls,
            table if is_static else None,
            beside if is_static else table,
            program=programs[program],
            ctx=ctx or _CHUNK,
            draft_tokens=draft,
            sizes=plot is not None,
            on_replay=_progress(bars, calls),
        )
    if plot is not None:
        with new_file(plot, force=force) as picture:
            picture.write(svg_file(size_chart(found, file.name, programs[program])).encode())
    if as_json:
        typer.echo(json.dumps(_plain(found) | {"file": str(file), "program": programs[program]}, indent=2))
    else:
        _print(file, found, programs[program])


def _bars() -> Progress:
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from suffixsvc_cli.base.bars import progress_bars

    return progress_bars(
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    )


def _progress(bars: Progress, logs: TokenLogs) -> Callable[[str], Callable[[int], None]]:
    tokens = sum(len(call.response) for calls in logs.values() for call in calls)

    def begin(title: str) -> Callable[[int], None]:
        task = bars.add_task(title, total=tokens)
        return lambda written: bars.advance(task, written)

    return begin


def _plain(found: CacheSimulation) -> dict[str, Any]:
    return {
        "logs": {name: _figures(each) for name, each in found.logs.items()},
        "all": _figures(found.total),
        "without": _figures(found.bare),
        "sizes": [{"bytes": size, **_figures(each)} for size, each in found.sizes],
    }


def _figures(found: ReplayStats) -> dict[str, Any]:
    shares = {"accept": found.accept, "hit_rate": found.hit_rate, "tokens_per_step": found.tokens_per_step}
    return asdict(found) | {name: None if math.isnan(value) else value for name, value in shares.items()}


def _print(file: Path, found: CacheSimulation, program: Program) -> None:
    from rich.console import Console
    from rich.table import Table

    numbers = ("n_predict", "n_drafted", "n_accept", "accept", "hit rate", "MAT")
    table = Table("", title=f"{file.name}, rules of {program}", title_justify="left")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    rows = [(Path(name).name, each) for name, each in found.logs.items()] if len(found.logs) > 1 else []
    rows += [("all logs", found.total), ("without the cache", found.bare)]
    for name, each in rows:
        table.add_row(
            name,
            *(f"{number:,}" for number in (each.n_predict, each.n_drafted, each.n_accept)),
            _shown(each.accept, ".3%"),
            _shown(each.hit_rate, ".1%"),
            _shown(each.tokens_per_step, ".3f"),
        )
    Console().print(table)
    for size, each in found.sizes:
        typer.echo(f"{size:12,} bytes: accept {each.accept:.3%}, hit rate {each.hit_rate:.1%}")


def _shown(share: float, how: str) -> str:
    """Format a share; a dash for NaN, where nothing was drafted or written."""
    return "-" if math.isnan(share) else format(share, how)

"""``suffixsvc cache forecast``: acceptance of a lookup cache in llama.cpp, simulated on logs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from suffixsvc.verb_options import option, with_options
from suffixsvc_cli.base.options import AsJson
from suffixsvc_cli.cache.look import CodecOptions

if TYPE_CHECKING:
    from rich.progress import Progress

    from suffixsvc_caches.lookup.replay import Program, ReplayStats
    from suffixsvc_caches.simulation import CacheSimulation, TokenLogs

_PROGRAMS: Final = "server, lookup or stats"
_CHUNK: Final = 4096


@dataclass(frozen=True, slots=True)
class ForecastOptions:
    """What is simulated, and of which calls."""

    dynamic: Path | None = option(None, help="Dynamic cache to use with the static one.")
    kind: str = option("auto", "--as", help="Kind of FILE: static, dynamic, or auto.")
    program: str = option(
        "server",
        help=f"Program to simulate: {_PROGRAMS}. llama-lookup-stats reads a log as one text in chunks; the "
        "others read each call with its prompt; llama-server learns almost nothing from its output.",
    )
    ctx: int | None = option(None, min=2, help=f"Tokens of a chunk, with --program stats. Default: {_CHUNK}.")
    draft: int = option(8, min=1, help="Maximum draft length; llama-server has 8.")
    log_format: str = option("auto", "--format", help="Format of the logs' records; docs/logs.md.")
    batch_input: tuple[Path, ...] = option((), help="Input file of an OpenAI batch, for prompts. Repeatable.")
    agents: tuple[str, ...] = option((), "--agent", help="Use only calls of this agent. Repeatable.")
    max_tokens: int = option(1_000_000, min=0, help="Maximum response tokens of all logs; 0 = no limit.")
    plot: Path | None = option(
        None, help="Plot hit rate against file size, for the cache pruned to ten sizes (SVG)."
    )
    force: bool = option(False, "--force", help="Replace the plot.")


@with_options
def forecast(
    file: Annotated[Path, typer.Argument(help="Lookup cache.")],
    logs: Annotated[
        list[Path], typer.Argument(help="Logs of the model's outputs that are not part of the cache.")
    ],
    tokenizer: CodecOptions,
    options: ForecastOptions,
    as_json: AsJson = False,
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
    from suffixsvc_cli.base.bars import progress_bars

    plot = options.plot
    programs = {"server": Program.SERVER, "lookup": Program.LOOKUP, "stats": Program.STATS}
    program = programs.get(options.program)
    if program is None:
        raise InvalidConfigError("--program must be known", expected=_PROGRAMS, got=options.program[:80])
    if options.ctx is not None and program is not Program.STATS:
        raise InvalidConfigError("--ctx must be given with --program stats only", got=options.program)
    if plot is not None:
        require_new(plot, force=options.force)
    codec = tokenizer.load()
    fingerprint = codec.fingerprint if codec else ""
    table, manifest = load_cache(file, fingerprint)
    is_static = cache_format(table, manifest, options.kind) is CacheFormat.STATIC
    if not is_static and (options.dynamic is not None or plot is not None):
        raise InvalidConfigError(
            f"{file} must be a static cache with --dynamic or --plot",
            got="a dynamic cache",
            remedy="--as static reads it as a static cache.",
        )
    beside = load_cache(options.dynamic, fingerprint)[0] if options.dynamic is not None else None
    reading = ReadOptions.parse(
        format=options.log_format,
        agents=options.agents,
        want_prompt=program is not Program.STATS,
        batch_input=options.batch_input,
    )
    report = ReadReport()
    calls = read_token_logs(logs, reading, codec, report, max_tokens=options.max_tokens)
    typer.echo(report.describe(), err=True)
    with progress_bars() as bars:
        found = simulate_cache(
            calls,
            table if is_static else None,
            beside if is_static else table,
            program=program,
            ctx=options.ctx or _CHUNK,
            draft_tokens=options.draft,
            sizes=plot is not None,
            on_replay=_progress(bars, calls),
        )
    if plot is not None:
        with new_file(plot, force=options.force) as picture:
            picture.write(svg_file(size_chart(found, file.name, program)).encode())
    if as_json:
        typer.echo(json.dumps(_plain(found) | {"file": str(file), "program": program}, indent=2))
    else:
        _print(file, found, program)


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

    from suffixsvc_cli.base.tables import number_table

    named = [(Path(name).name, each) for name, each in found.logs.items()] if len(found.logs) > 1 else []
    rows = [
        (
            name,
            *(f"{number:,}" for number in (each.n_predict, each.n_drafted, each.n_accept)),
            _shown(each.accept, ".3%"),
            _shown(each.hit_rate, ".1%"),
            _shown(each.tokens_per_step, ".3f"),
        )
        for name, each in [*named, ("all logs", found.total), ("without the cache", found.bare)]
    ]
    heads = ("", "n_predict", "n_drafted", "n_accept", "accept", "hit rate", "MAT")
    Console().print(number_table(heads, rows, title=f"{file.name}, rules of {program}"))
    for size, each in found.sizes:
        typer.echo(f"{size:12,} bytes: accept {each.accept:.3%}, hit rate {each.hit_rate:.1%}")


def _shown(share: float, how: str) -> str:
    """Format a share; a dash for NaN, where nothing was drafted or written."""
    return "-" if math.isnan(share) else format(share, how)

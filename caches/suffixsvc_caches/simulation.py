"""Simulation of lookup caches on logs: what llama.cpp would accept with a cache, and without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from suffixsvc.errors import InvalidInputError
from suffixsvc.plots import Chart, Series
from suffixsvc_caches.logs import LogFile, ReadOptions, ReadReport, find_logs, read_calls
from suffixsvc_caches.lookup.algorithm import DRAFT_TOKENS
from suffixsvc_caches.lookup.pruning import prune_table
from suffixsvc_caches.lookup.replay import LookupReplayer, OnTokens, Program, ReplayStats, TokenCall
from suffixsvc_caches.lookup.table import LookupTable
from suffixsvc_caches.tokenizers.base import Tokenizer
from suffixsvc_caches.tokenizers.load import no_tokenizer, require_fingerprint
from suffixsvc_caches.tokenizers.pieces import encode_contents

#: calls encoded at a time
_BATCH: Final = 256
#: cache sizes in a chart
_SIZES: Final = 10

#: the calls of each log, by its path
TokenLogs = Mapping[str, Sequence[TokenCall]]
#: called with the title of each replay; returns the progress callback for it
OnReplay = Callable[[str], OnTokens]


@dataclass(frozen=True, slots=True)
class CacheSimulation:
    """Statistics of replays with and without a cache.

    Attributes:
        logs: with the cache, by log.
        total: with the cache, all logs.
        bare: without the cache, all logs.
        sizes: with the pruned cache, all logs: (bytes, statistics) by rising size, the whole cache last;
            empty unless requested.
    """

    logs: dict[str, ReplayStats]
    total: ReplayStats
    bare: ReplayStats
    sizes: list[tuple[int, ReplayStats]] = field(default_factory=list)


def simulate_cache(
    logs: TokenLogs,
    static: LookupTable | None,
    dynamic: LookupTable | None = None,
    *,
    program: Program = Program.SERVER,
    ctx: int = 4096,
    draft_tokens: int = DRAFT_TOKENS,
    sizes: bool = False,
    on_replay: OnReplay | None = None,
) -> CacheSimulation:
    """Replay logs with caches, and without the static cache; if that is None, without the dynamic one.

    Args:
        logs: the calls of each log.
        static, dynamic: the caches.
        program: the llama.cpp program to simulate.
        ctx: tokens of a chunk; only for llama-lookup-stats.
        draft_tokens: length limit of a draft.
        sizes: also replay with the static cache pruned to ten sizes.
        on_replay: see :data:`OnReplay`.

    Raises:
        InvalidInputError: the logs are too short, or a table has malformed n-grams.
    """

    def replay(
        title: str, static: LookupTable | None, dynamic: LookupTable | None
    ) -> tuple[dict[str, ReplayStats], ReplayStats]:
        replayer = LookupReplayer(static, dynamic, program=program, ctx=ctx, draft_tokens=draft_tokens)
        on_tokens = on_replay(title) if on_replay is not None else None
        each = {name: replayer.add_log(calls, on_tokens) for name, calls in logs.items()}
        return each, sum(each.values(), ReplayStats(draft_tokens))

    each, total = replay("with the cache", static, dynamic)
    if not total.steps:
        if program is not Program.STATS:
            raise InvalidInputError("the logs must have responses", got="none")
        raise InvalidInputError(
            f"a log must have more than {ctx} tokens", remedy="Give longer logs, or a smaller --ctx."
        )
    _, bare = replay("without it", None, None if static is None else dynamic)
    found = CacheSimulation(each, total, bare)
    if sizes and static is not None:
        for size, cut in pruned_sizes(static):
            stats = total if cut is static else replay(f"{size:,} bytes of it", cut, dynamic)[1]
            found.sizes.append((size, stats))
    return found


def pruned_sizes(static: LookupTable) -> list[tuple[int, LookupTable]]:
    """Prune a cache to ten sizes, that rise geometrically from a thousandth of it to the whole cache.

    Returns:
        (bytes, cache) by rising size; sizes that prune to the same file are one.
    """
    whole = static.file_bytes()
    found = {whole: static}
    for step in range(1, _SIZES):
        cut = prune_table(static, int(whole * 1000 ** -(step / (_SIZES - 1))), static=True)
        if len(cut):
            found.setdefault(cut.file_bytes(), cut)
    return sorted(found.items())


def size_chart(found: CacheSimulation, cache: str, program: Program) -> Chart:
    """Chart of hit rate against file size."""
    sizes = [size for size, _ in found.sizes]
    return Chart(
        title=f"{cache}: hit rate against file size",
        caption="",
        x_label="bytes of the static cache (cut down: the n-grams whose follower was seen most often)",
        y_label=f"by the rules of {program}",
        series=[
            Series("tokens that were drafted right", [(s, f.hit_rate) for s, f in found.sizes], 0),
            Series("the same without the cache", [(s, found.bare.hit_rate) for s in sizes], 0, dashed=True),
            Series("drafts that were right", [(s, f.accept) for s, f in found.sizes], 1),
        ],
        log_x=True,
        percent_y=True,
    )


def read_token_logs(
    paths: Sequence[Path],
    options: ReadOptions,
    tokenizer: Tokenizer | None,
    report: ReadReport,
    *,
    max_tokens: int = 0,
) -> dict[str, list[TokenCall]]:
    """Read logs as token ids into memory.

    Args:
        paths: files and folders.
        options: how to read them.
        tokenizer: for texts; None for logs of token ids.
        report: receives counts and faults.
        max_tokens: stop after this many response tokens of all logs; 0 = no limit.

    Raises:
        InvalidInputError, TokenizerMismatchError: as :func:`token_calls` and ``find_logs``.
    """
    logs: dict[str, list[TokenCall]] = {}
    left = max_tokens or float("inf")
    for file in find_logs(paths, options):
        calls = logs.setdefault(str(file.path), [])
        for call in token_calls(file, options, tokenizer, report):
            if left <= 0:
                break
            calls.append(call)
            left -= len(call.response)
    return {name: calls for name, calls in logs.items() if calls}


def token_calls(
    file: LogFile, options: ReadOptions, tokenizer: Tokenizer | None, report: ReadReport
) -> Iterator[TokenCall]:
    """Yield the calls of a log as token ids; prompts are empty unless ``options.want_prompt``.

    Raises:
        InvalidInputError: the log has texts, and there is no tokenizer.
        TokenizerMismatchError: the log has ids of another tokenizer. Errors of ``read_calls``.
    """
    calls = read_calls(file, options, report)
    while batch := list(islice(calls, _BATCH)):
        for call in batch:
            if tokenizer is None:
                if any(isinstance(content, str) and content for content in (call.prompt, call.response)):
                    raise no_tokenizer(file.path)
            elif call.tokenizer:
                require_fingerprint(call.tokenizer, tokenizer.fingerprint, str(file.path))
        prompts = encode_contents(tokenizer, [call.prompt for call in batch])
        responses = encode_contents(tokenizer, [call.response for call in batch])
        for prompt, response in zip(prompts, responses, strict=True):
            yield TokenCall(prompt.tolist(), response.tolist())

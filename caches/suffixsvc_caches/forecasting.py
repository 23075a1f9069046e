"""From logs and a lookup cache to a forecast: what llama.cpp accepts with the cache, and without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from suffixsvc.errors import InvalidInputError
from suffixsvc.plots import Chart, Series
from suffixsvc_caches.logs import LogCall, LogFile, LogTally, ReadOptions, find_logs, read_calls
from suffixsvc_caches.logs.call import Content
from suffixsvc_caches.lookup import DRAFT_TOKENS, LookupTable
from suffixsvc_caches.lookup.forecast import (
    Forecast,
    Forecaster,
    OnTokens,
    Program,
    TokenCall,
    forecast_sizes,
)
from suffixsvc_caches.tokenizers import Tokenizer, require_fingerprint

__all__ = ["CacheForecast", "TokenLogs", "forecast_cache", "read_token_logs", "size_chart"]

#: calls that are encoded at a time
_BATCH: Final = 256
#: forecasts that a picture is drawn of
_SIZES: Final = 10

#: the calls of each log, by its path
TokenLogs = Mapping[str, Sequence[TokenCall]]
#: is told what is replayed now, and gives what wants to know how far it is
Watch = Callable[[str], OnTokens]


@dataclass(frozen=True, slots=True)
class CacheForecast:
    """What a cache brings.

    Attributes:
        logs: with the cache, by log.
        total: of all logs.
        bare: of all logs, without the cache.
        sizes: of all logs, with the cache cut down: (bytes, forecast), the whole cache last; empty where they
            were not asked for.
    """

    logs: dict[str, Forecast]
    total: Forecast
    bare: Forecast
    sizes: list[tuple[int, Forecast]] = field(default_factory=list)


def forecast_cache(
    logs: TokenLogs,
    static: LookupTable | None,
    dynamic: LookupTable | None = None,
    *,
    program: Program = Program.SERVER,
    ctx: int = 4096,
    draft_tokens: int = DRAFT_TOKENS,
    sizes: bool = False,
    watch: Watch | None = None,
) -> CacheForecast:
    """Replay logs with caches, and without the static one; if that is None, without the dynamic one.

    Args:
        sizes: also with the static cache cut down to ten sizes.

    Raises:
        InvalidInputError: no log is long enough to replay anything, or a table has n-grams that are none.
    """

    def replay(
        title: str, static: LookupTable | None, dynamic: LookupTable | None
    ) -> tuple[dict[str, Forecast], Forecast]:
        forecaster = Forecaster(static, dynamic, program=program, ctx=ctx, draft_tokens=draft_tokens)
        on_tokens = watch(title) if watch is not None else None
        each = {name: forecaster.add_log(calls, on_tokens) for name, calls in logs.items()}
        return each, sum(each.values(), Forecast(draft_tokens))

    each, total = replay("with the cache", static, dynamic)
    if not total.steps:
        raise InvalidInputError(
            "the logs are too short to replay",
            expected=f"more than {ctx} tokens in a log" if program is Program.STATS else "responses",
            remedy="Give more, or a smaller --ctx." if program is Program.STATS else None,
        )
    _, bare = replay("without it", None, None if static is None else dynamic)
    found = CacheForecast(each, total, bare)
    if sizes and static is not None:

        def with_cut(whole: LookupTable, cut: LookupTable) -> Forecast:
            return total if cut is whole else replay(f"{cut.file_bytes():,} bytes of it", cut, dynamic)[1]

        found.sizes.extend(forecast_sizes(static, partial(with_cut, static), _SIZES))
    return found


def size_chart(found: CacheForecast, cache: str, program: Program) -> Chart:
    """Hit rate against the size of the file."""
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
    tally: LogTally,
    *,
    max_tokens: int = 0,
    on_bytes: Callable[[int], None] | None = None,
) -> dict[str, list[TokenCall]]:
    """Logs as token ids, all in memory.

    Args:
        max_tokens: stop after so many response tokens of all logs; 0 = never.
        on_bytes: told how many bytes of the log at hand are read.

    Raises: as :func:`token_calls` and ``find_logs``.
    """
    logs: dict[str, list[TokenCall]] = {}
    left = max_tokens or float("inf")
    for file in find_logs(paths, options):
        calls = logs.setdefault(str(file.path), [])
        for call in token_calls(file, options, tokenizer, tally, on_bytes):
            if left <= 0:
                break
            calls.append(call)
            left -= len(call.response)
    return {name: calls for name, calls in logs.items() if calls}


def token_calls(
    file: LogFile,
    options: ReadOptions,
    tokenizer: Tokenizer | None,
    tally: LogTally,
    on_bytes: Callable[[int], None] | None = None,
) -> Iterator[TokenCall]:
    """The calls of a log; prompts are empty where the options do not want them.

    Raises:
        InvalidInputError: it holds texts, and there is no tokenizer. TokenizerMismatchError: it holds ids of
            another one. Errors of ``read_calls``.
    """
    calls = read_calls(file, options, tally, on_bytes)
    while batch := list(islice(calls, _BATCH)):
        for call in batch:
            _require_fit(call, file, tokenizer)
        prompts = _encoded(tokenizer, [call.prompt for call in batch])
        responses = _encoded(tokenizer, [call.response for call in batch])
        yield from map(TokenCall, prompts, responses)


def _require_fit(call: LogCall, file: LogFile, tokenizer: Tokenizer | None) -> None:
    if tokenizer is None:
        if any(isinstance(content, str) and content for content in (call.prompt, call.response)):
            raise InvalidInputError(
                f"{file.path} holds texts, not token ids",
                expected="a tokenizer, or a log of token ids",
                remedy="Give a GGUF or a tokenizer.json with --tokenizer.",
            )
    elif call.tokenizer:
        require_fingerprint(call.tokenizer, tokenizer.fingerprint, str(file.path))


def _encoded(tokenizer: Tokenizer | None, contents: Sequence[Content]) -> Iterable[list[int]]:
    texts = [content for content in contents if isinstance(content, str)]
    encoded = iter(tokenizer.encode_batch(texts) if tokenizer is not None and texts else ())
    for content in contents:
        if isinstance(content, str):
            yield next(encoded).tolist() if tokenizer is not None else []
        else:
            yield content.tolist()

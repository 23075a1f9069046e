"""llama-server drafts from our static cache."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from suffixsvc_caches.lookup.algorithm import DRAFT_TOKENS
from suffixsvc_caches.lookup.files import write_lookup
from suffixsvc_caches.lookup.replay import LookupReplayer, TokenCall
from suffixsvc_caches.lookup.table import LookupTable
from suffixsvc_caches.tokenizers.base import Tokenizer
from support.llama_tools import Note, RunningServer, Tools, serving
from support.lookup_tables import table_of

pytestmark = pytest.mark.interop

PROMPT = "Write a list of the months of the year, each with the number of its days:\n"
TOKENS = 96


@dataclass(frozen=True)
class Answer:
    """Answer of the server, and its counts of drafted tokens."""

    token_ids: list[int]
    drafted: int
    accepted: int


class Server(RunningServer):
    """Client of a running llama-server."""

    def complete(self) -> Answer:
        asked = {
            "prompt": PROMPT,
            "n_predict": TOKENS,
            "temperature": 0,
            "return_tokens": True,
            "ignore_eos": True,
        }
        found = json.loads(self.ask("/completion", asked))
        timings = found["timings"]
        return Answer(found["tokens"], timings.get("draft_n", 0), timings.get("draft_n_accepted", 0))

    def metric(self, name: str) -> int:
        found = re.search(rf"^llamacpp:{name} (\d+)", self.ask("/metrics"), re.MULTILINE)
        assert found is not None, name
        return int(found[1])


@contextmanager
def drafting(tools: Tools, log: Path, *args: str | Path) -> Iterator[Server]:
    with serving(tools, log, "--metrics", "-np", "1", "-c", "1024", *args) as running:
        yield Server(running.address, running.pid)


def static_cache(path: Path, token_ids: list[int]) -> LookupTable:
    """2-grams of an answer, counted twice."""
    found: dict[tuple[int, int], dict[int, int]] = {}
    for a, b, c in zip(token_ids, token_ids[1:], token_ids[2:], strict=False):
        followers = found.setdefault((a, b), {})
        followers[c] = followers.get(c, 0) + 2
    table = table_of(found).in_order()
    write_lookup(path, table)
    return table


def test_the_server_drafts_from_our_cache(
    tools: Tools, tokenizer: Tokenizer, tmp_path: Path, note: Note
) -> None:
    kind = ("--spec-type", "ngram-cache")
    with drafting(tools, tmp_path / "without.log", *kind) as server:
        without = server.complete()
    table = static_cache(tmp_path / "ours.bin", without.token_ids)
    with drafting(tools, tmp_path / "with.log", *kind, "-lcs", tmp_path / "ours.bin") as server:
        found = server.complete()
        assert server.metric("spec_decode_num_draft_tokens_total") == found.drafted
        assert server.metric("spec_decode_num_accepted_tokens_total") == found.accepted
    assert found.accepted > without.accepted + TOKENS // 4
    prompt = tokenizer.encode_batch([PROMPT])[0].tolist()
    forecasts = [
        LookupReplayer(cache).add_log([TokenCall(prompt, answer.token_ids)])
        for cache, answer in ((None, without), (table, found))
    ]
    # The server truncates its last draft to the remaining tokens.
    for forecast, answer in zip(forecasts, (without, found), strict=True):
        assert 0 <= forecast.n_drafted - answer.drafted < DRAFT_TOKENS
        assert 0 <= forecast.n_accept - answer.accepted < DRAFT_TOKENS
    note(
        "llama-server",
        f"`--spec-type ngram-cache -lcs`, a cache of its answer of {TOKENS} tokens",
        f"starts and drafts from it: /metrics shows {found.drafted} drafted, {found.accepted} accepted "
        f"(`cache forecast`: {forecasts[1].n_drafted} and {forecasts[1].n_accept}, the last "
        f"draft not cut to what is left); without the cache {without.drafted} and {without.accepted}",
    )


def test_the_server_ignores_the_cache_without_the_type(tools: Tools, tmp_path: Path, note: Note) -> None:
    static_cache(tmp_path / "ours.bin", [1, 2, 3, 4])
    with drafting(tools, tmp_path / "server.log", "-lcs", tmp_path / "ours.bin") as server:
        assert server.complete().drafted == 0
    note(
        "llama-server",
        "`-lcs` without `--spec-type ngram-cache`",
        "starts, and never drafts: the file is ignored",
    )


def test_the_server_aborts_on_a_truncated_cache(tools: Tools, tmp_path: Path, note: Note) -> None:
    static_cache(tmp_path / "ours.bin", [1, 2, 3, 4])
    torn = tmp_path / "torn.bin"
    torn.write_bytes((tmp_path / "ours.bin").read_bytes()[:-1])
    result = tools.run(
        "llama-server", "-m", tools.model, "--spec-type", "ngram-cache", "-lcs", torn, "--port", "0"
    )
    assert result.returncode != 0
    note("llama-server", "a static cache that lacks its last byte", "aborts at the start")

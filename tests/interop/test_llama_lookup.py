"""Comparison of llama-lookup, -create, -merge and -stats with our files and replays."""

from __future__ import annotations

import random
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from suffixsvc.errors import StoreCorruptError
from suffixsvc_caches.lookup.faults import Fault, FaultEffect, find_faults
from suffixsvc_caches.lookup.files import read_lookup, read_words, record_starts, write_lookup
from suffixsvc_caches.lookup.replay import LookupReplayer, Program, ReplayStats, TokenCall
from suffixsvc_caches.lookup.table import LookupTable, merge_tables
from suffixsvc_caches.manifest import find_mismatches, read_manifest
from suffixsvc_caches.tokenizers.base import Tokenizer
from support import lookup_oracle as oracle
from support.llama_tools import ROOT, Note, Tools
from support.lookup_tables import records_of_table, table_of

pytestmark = pytest.mark.interop

#: generated pages, on which the outcome must not depend
_WRITTEN = ("interop.md", "performance.md")


@pytest.fixture(scope="session")
def corpus() -> str:
    """Prose, tables and shell lines. Without the newline at its end: ``-f`` drops one."""
    pages = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in _WRITTEN]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages).strip()


@pytest.fixture(scope="session")
def held_out() -> str:
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8") + (ROOT / "README.md").read_text(
        encoding="utf-8"
    )


def counted(token_ids: list[int]) -> LookupTable:
    """2-grams, counted by a plain loop."""
    found: dict[tuple[int, int], dict[int, int]] = {}
    for a, b, c in zip(token_ids, token_ids[1:], token_ids[2:], strict=False):
        followers = found.setdefault((a, b), {})
        followers[c] = followers.get(c, 0) + 1
    return table_of(found).in_order()


def stats(tools: Tools, text: Path, ctx: int, *args: str | Path) -> dict[str, int]:
    """Parse the output of llama-lookup-stats."""
    result = tools.run(
        "llama-lookup-stats",
        "-m",
        tools.model,
        "--no-escape",
        "-f",
        text,
        "-c",
        str(ctx),
        "--spec-draft-n-max",
        "8",
        *args,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    names = "n_draft|n_predict|n_drafted|n_accept"
    return {name: int(number) for name, number in re.findall(rf"\b({names})\s*=\s*(\d+)", result.stderr)}


def printed(replayed: ReplayStats) -> dict[str, int]:
    return {name: getattr(replayed, name) for name in ("n_draft", "n_predict", "n_drafted", "n_accept")}


# ------------------------------------------------------------------------------------------------- the files


def test_merge_rewrites_our_files_without_loss(tools: Tools, tmp_path: Path, note: Note) -> None:
    chance = random.Random(4)
    tables = []
    for number in range(2):
        records = {
            tuple(chance.randrange(40) for _ in range(chance.randint(1, 4))): {
                chance.randrange(49_000): chance.randint(1, 2**29) for _ in range(chance.randint(1, 50))
            }
            for _ in range(20_000)
        }
        tables.append(table_of(records))
        write_lookup(tmp_path / f"{number}.bin", tables[-1])
    for files, expected in ((["0.bin"], tables[0]), (["0.bin", "1.bin"], merge_tables(tables))):
        result = tools.run("llama-lookup-merge", *files, "out.bin", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert records_of_table(read_lookup(tmp_path / "out.bin")) == records_of_table(expected)
        assert (tmp_path / "out.bin").stat().st_size == expected.file_bytes()
    note(
        "llama-lookup-merge",
        f"{sum(map(len, tables)):,} n-grams of 1 to 4 tokens in two files of ours, read, added up, written",
        "every n-gram, follower and count the same; also what `suffixsvc cache merge` makes of them",
    )


SMALL = [([1, 2], [(3, 4), (5, 6)]), ([7], [(8, 9)]), ([1, 2, 3, 4], [(5, 1)])]


def laid_out(records: list[tuple[list[int], list[tuple[int, int]]]]) -> bytes:
    return b"".join(
        struct.pack("<5i", *ngram, *[-1] * (4 - len(ngram)), len(pairs))
        + b"".join(struct.pack("<2i", *pair) for pair in pairs)
        for ngram, pairs in records
    )


def worst(path: Path) -> Fault | None:
    words, rest = read_words(path)
    faults = [*find_faults(words, *record_starts(words), rest)]
    by_harm = {fault.effect: fault for fault in reversed(faults)}
    return next((by_harm[harm] for harm in FaultEffect if harm in by_harm), None)


def test_verify_predicts_the_effect_of_damaged_files(tools: Tools, tmp_path: Path, note: Note) -> None:
    whole = laid_out(SMALL)
    damaged = [whole[:length] for length in range(len(whole) + 1)]
    words = list(struct.unpack(f"<{len(whole) // 4}i", whole))
    for at in range(len(words)):
        for value in (-(2**31), -2, 0, 2**31 - 1):
            damaged.append(struct.pack(f"<{len(words)}i", *words[:at], value, *words[at + 1 :]))
    damaged += [whole + whole, whole + laid_out([([7], [(8, 1), (8, 2)])])]
    path, out = tmp_path / "damaged.bin", tmp_path / "out.bin"
    tally = dict.fromkeys(["aborts", "reads a part", "reads all"], 0)
    for raw in damaged:
        path.write_bytes(raw)
        out.unlink(missing_ok=True)
        fault = worst(path)
        result = tools.run("llama-lookup-merge", path, out)
        if fault is not None and fault.effect is FaultEffect.ABORTS:
            assert result.returncode != 0, fault
            tally["aborts"] += 1
            continue
        assert result.returncode == 0, (fault, result.stderr[-500:])
        # llama-server aborts when it drafts the token
        if fault is not None and fault.effect is FaultEffect.ABORTS_LATER:
            with pytest.raises(StoreCorruptError, match="is not a token id"):
                read_lookup(out)
            tally["reads all"] += 1
            continue
        rewritten = read_lookup(out)
        cut = fault is not None and fault.effect is FaultEffect.CUT
        assert rewritten.file_bytes() < len(raw) if cut else True
        tally["reads a part" if cut else "reads all"] += 1
    assert all(tally.values())
    note(
        "llama-lookup-merge",
        f"{len(damaged)} damaged files: every beginning of a file, every word changed",
        "does what `suffixsvc cache verify` says of each: "
        + ", ".join(f"{how} {number}" for how, number in tally.items()),
    )


def test_create_counts_what_our_builder_counts(
    tools: Tools, tokenizer: Tokenizer, corpus: str, tmp_path: Path, note: Note
) -> None:
    text, theirs, ours = tmp_path / "corpus.txt", tmp_path / "theirs.bin", tmp_path / "ours.bin"
    text.write_text(corpus, encoding="utf-8")
    result = tools.run("llama-lookup-create", "-m", tools.model, "--no-escape", "-f", text, "-lcs", theirs)
    assert result.returncode == 0, result.stderr[-2000:]
    command = [sys.executable, "-m", "suffixsvc_cli", "build", str(text), "--format", "text"]
    command += ["--tokenizer", str(tools.model), "--lookup-static", str(ours), "--exact-counts"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    found = records_of_table(read_lookup(theirs))
    assert found == records_of_table(counted(tokenizer.encode_batch([corpus])[0].tolist()))
    assert found == records_of_table(read_lookup(ours))
    manifest = read_manifest(ours)
    assert manifest is not None
    assert list(find_mismatches(ours, manifest, read_lookup(ours))) == []
    note(
        "llama-lookup-create",
        f"{len(found):,} 2-grams of {len(corpus):,} characters of documentation",
        "the same n-grams, followers and counts as `suffixsvc build --exact-counts`",
    )


# --------------------------------------------------------------------------------------------- the forecast


def test_stats_of_a_text_without_ties(tools: Tools, tokenizer: Tokenizer, tmp_path: Path, note: Note) -> None:
    """A cycle of words with occasional new words, inserted only after the cycle's n-grams have been counted
    in their chunk: two followers never have equal counts."""
    ctx, chance = 1024, random.Random(7)
    words = chance.sample(single_words(tokenizer), 400)
    circle, others = words[:40], iter(words[40:])
    token_ids: list[int] = []
    while len(token_ids) < 8 * ctx:
        for word in circle:
            token_ids.append(word)
            if len(token_ids) % ctx > 3 * len(circle) and chance.random() < 0.04:
                token_ids.append(next(others))
    text = tokenizer.decode(token_ids)
    assert tokenizer.encode_batch([text])[0].tolist() == token_ids
    cache, file = tmp_path / "static.bin", tmp_path / "text.txt"
    table = counted(circle * 8)
    write_lookup(cache, table)
    file.write_text(text, encoding="utf-8")

    oracle.TIES.clear()
    oracle.stats(
        token_ids, ctx, 8, oracle.loaded([(n, [*f.items()]) for n, f in records_of_table(table).items()])
    )
    assert oracle.TIES == []
    forecast = LookupReplayer(table, program=Program.STATS, ctx=ctx).add_log([TokenCall([], token_ids)])
    assert 0 < forecast.n_accept < forecast.n_drafted
    assert stats(tools, file, ctx, "-lcs", cache) == printed(forecast)
    note(
        "llama-lookup-stats",
        f"a text of {len(token_ids):,} tokens in which no two followers are ever equally good",
        _shown(forecast, "equal"),
    )


def single_words(tokenizer: Tokenizer) -> list[int]:
    """Tokens that are a word with a leading space in any context."""
    found = [
        i
        for i in range(3000, 20_000)
        if tokenizer.decode([i])[:1] == " " and tokenizer.decode([i])[1:].isalpha()
    ]
    return [i for i in found if tokenizer.decode([i]).isascii()]


def test_stats_of_documentation(
    tools: Tools, tokenizer: Tokenizer, corpus: str, held_out: str, tmp_path: Path, note: Note
) -> None:
    file = tmp_path / "text.txt"
    file.write_text(held_out, encoding="utf-8")
    token_ids = tokenizer.encode_batch([held_out])[0].tolist()
    table = counted(tokenizer.encode_batch([corpus])[0].tolist())
    write_lookup(tmp_path / "static.bin", table)
    half = token_ids[: len(token_ids) // 2]
    orders = {tuple(half[i - n : i]): dict[int, int]() for n in range(1, 5) for i in range(n, len(half))}
    for n in range(1, 5):
        for i in range(n, len(half)):
            followers = orders[tuple(half[i - n : i])]
            followers[half[i]] = followers.get(half[i], 0) + 1
    dynamic = table_of(orders)
    write_lookup(tmp_path / "dynamic.bin", dynamic)
    given = {
        "no cache": (None, None, ()),
        "a static cache": (table, None, ("-lcs", tmp_path / "static.bin")),
        "a static and a dynamic cache": (
            table,
            dynamic,
            ("-lcs", tmp_path / "static.bin", "-lcd", tmp_path / "dynamic.bin"),
        ),
    }
    for name, (static, beside, args) in given.items():
        for ctx in (256, 1024):
            forecast = LookupReplayer(static, beside, program=Program.STATS, ctx=ctx).add_log(
                [TokenCall([], token_ids)]
            )
            expected, got = stats(tools, file, ctx, *args), printed(forecast)
            apart = {key: abs(got[key] - expected[key]) for key in expected}
            assert apart["n_draft"] == apart["n_predict"] == 0
            for key in ("n_drafted", "n_accept"):
                assert apart[key] <= 0.01 * expected[key], (name, ctx, expected, got)
            off = ", ".join(f"{key} off by {apart[key]}" for key in ("n_drafted", "n_accept") if apart[key])
            note(
                "llama-lookup-stats",
                f"{len(token_ids):,} tokens of documentation in chunks of {ctx}, {name}",
                _shown(forecast, off or "equal"),
            )


def _shown(replayed: ReplayStats, outcome: str) -> str:
    return (
        f"`cache forecast --program stats`: n_drafted {replayed.n_drafted:,}, n_accept {replayed.n_accept:,} "
        f"({replayed.accept:.1%}): {outcome}"
    )


def test_lookup_takes_both_caches_and_writes_a_dynamic_one(
    tools: Tools, tokenizer: Tokenizer, corpus: str, tmp_path: Path, note: Note
) -> None:
    static, dynamic = tmp_path / "static.bin", tmp_path / "dynamic.bin"
    table = counted(tokenizer.encode_batch([corpus])[0].tolist())
    write_lookup(static, table)
    before = table_of({(1,): {2: 3}, (1, 2, 3, 4): {5: 6}})
    write_lookup(dynamic, before)
    args = ("-p", "The service keeps", "-n", "32", "--temp", "0", "-c", "512", "--spec-draft-n-max", "8")
    result = tools.run("llama-lookup", "-m", tools.model, *args, "-lcs", static, "-lcd", dynamic)
    assert result.returncode == 0, result.stderr[-2000:]
    after = records_of_table(read_lookup(dynamic))
    assert all(after[ngram] == followers for ngram, followers in records_of_table(before).items())
    assert {len(ngram) for ngram in after} == {1, 2, 3, 4}
    note(
        "llama-lookup",
        "a static and a dynamic cache of ours with `-lcs` and `-lcd`, 32 tokens written",
        f"takes both; what it writes back as the dynamic one, {len(after):,} n-grams, is read by ours and "
        "has all that was in it",
    )

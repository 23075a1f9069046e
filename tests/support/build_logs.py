"""Synthetic logs of token ids for tests of counting and building, and their n-grams by brute force."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from suffixsvc.lookup_records import RecordFile
from suffixsvc_caches.counting.journal import Journal
from suffixsvc_caches.counting.local import count_logs
from suffixsvc_caches.counting.merging import merge_runs
from suffixsvc_caches.counting.plan import CountOptions, CountPlan, CountResult
from suffixsvc_caches.logs import ReadOptions, find_logs
from suffixsvc_caches.tokenizers.base import Tokenizer
from support.ngram_oracle import Text, follows, ranked

FINGERPRINT = "xxh3:0123456789abcdef"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a synthetic log."""

    response: list[int]
    prompt: list[int] = field(default_factory=list)
    agent: str = ""

    def record(self, tokenizer: str = FINGERPRINT) -> dict[str, Any]:
        return {
            "response_token_ids": self.response,
            "prompt_token_ids": self.prompt,
            "session_id": "s",
            "agent": self.agent,
            "tokenizer": tokenizer,
        }


def synthetic_calls(seed: int, number: int, longest: int = 40, alphabet: int = 12) -> list[Call]:
    """Calls with common n-grams; every fifth repeats the response of an earlier one."""
    random = Random(seed)
    calls: list[Call] = []
    for i in range(number):
        period = [random.randrange(alphabet) for _ in range(random.randrange(1, 9))]
        response = (period * longest)[: random.randrange(1, longest)]
        if calls and i % 5 == 0:
            response = random.choice(calls).response
        prompt = [random.randrange(alphabet) for _ in range(random.randrange(12))]
        calls.append(Call(response, prompt, random.choice(["", "planner", "coder"])))
    return calls


def write_log(path: Path, calls: Sequence[Call], tokenizer: str = FINGERPRINT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(call.record(tokenizer)) + "\n" for call in calls))
    return path


def plan_of(
    logs: Sequence[Path], *, tokenizer: Tokenizer | None = None, keep_tokens: bool = False, **options: Any
) -> CountPlan:
    reading = ReadOptions.parse()
    return CountPlan(find_logs(logs, reading), reading, tokenizer, CountOptions(**options), keep_tokens)


def count_all(plan: CountPlan, work: Path) -> tuple[CountResult, dict[int, bytes]]:
    """Count and merge; return the result and the complete records of each order."""
    journal = Journal(work, plan.key())
    try:
        counted = count_logs(plan, journal)
        return counted, records_of(plan, journal)
    finally:
        journal.close()


def records_of(plan: CountPlan, journal: Journal) -> dict[int, bytes]:
    orders = range(plan.options.lowest, plan.options.highest + 1)
    found = merge_runs(journal, [RecordFile(n, n) for n in orders], plan.options.workers)
    return {each.wanted.order: b"".join(part.read_bytes() for part in each.parts) for each in found}


def texts_of(calls: Sequence[Call], context: int = 0) -> list[Text]:
    texts: list[Text] = []
    for call in calls:
        tail = call.prompt[len(call.prompt) - min(context, len(call.prompt)) :]
        texts.append(([*tail, *call.response], len(tail)))
    return texts


def records_by_hand(texts: Sequence[Text], order: int) -> list[tuple[Any, ...]]:
    """Expected records, in the form of ``ngram_oracle.parse``."""
    return [(ngram, (), ranked(counts)) for ngram, counts in sorted(follows(texts, order).items())]


def unique(calls: Sequence[Call]) -> list[Call]:
    """Drop calls whose response an earlier call has."""
    return list({tuple(call.response): call for call in reversed(calls)}.values())[::-1]

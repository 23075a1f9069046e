"""Command line of the examples: runs the task, and prints from where its tokens were drafted."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from openai import OpenAI
from suffixsvc_openai.examples.shop import OTHER_QUESTIONS, QUESTIONS, Shop

#: base_url, model, shop, question -> answer
Example = Callable[[str, str, Shop, str], str]
_BY_SOURCE: Final = "suffixsvc:spec_decode_tokens_by_source"
_SETTLING_SECONDS: Final = 0.3
_RUNS: Final = {"first run": QUESTIONS, "second run": QUESTIONS, "other questions": OTHER_QUESTIONS}


def run_example(answer: Example, arguments: Sequence[str] | None = None) -> None:
    """Answer the questions, twice with ``--again``, and print the tokens of each run by source."""
    parser = argparse.ArgumentParser(
        description="A task of two agents; suffixsvc_openai.examples tells more."
    )
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1", help="of suffixsvc openai")
    parser.add_argument(
        "--again", action="store_true", help="answer the questions twice, then similar ones, and compare"
    )
    options = parser.parse_args(arguments)
    base_url: str = options.base_url
    with OpenAI(base_url=base_url, api_key="any") as client:
        model = client.models.list().data[0].id
    runs = list(_RUNS)[: None if options.again else 1]
    tokens = {name: _run(answer, base_url, model, _RUNS[name]) for name in runs}
    sources = sorted({source for found in tokens.values() for source in found})
    print(f"\n| tokens | {' | '.join(sources)} | all |\n|---|{'---|' * len(sources)}---|")
    for name, found in tokens.items():
        shares = (f"{found[source]} ({found[source] / max(1, found.total()):.0%})" for source in sources)
        print(f"| {name} | {' | '.join(shares)} | {found.total()} |")


def _run(answer: Example, base_url: str, model: str, questions: Sequence[str]) -> Counter[str]:
    before = _tokens_by_source(base_url)
    for question in questions:
        shop = Shop()
        print(f"\n{question}")
        said = answer(base_url, model, shop, question)
        for plan in shop.plans:
            print(f"  plan: {plan}")
        for query, result in shop.queries:
            print(f"  run_sql: {query} -> {result}")
        print(f"  {said}")
        shop.close()
    return _tokens_by_source(base_url) - before


def _tokens_by_source(base_url: str) -> Counter[str]:
    """Generated tokens of the server by the source of their draft, since its start.

    The server counts an answer a moment after it was sent: the counts are read until they stay the same.
    """
    found, before = _counted(base_url), None
    while found != before:
        time.sleep(_SETTLING_SECONDS)
        found, before = _counted(base_url), found
    return found


def _counted(base_url: str) -> Counter[str]:
    with urlopen(base_url.removesuffix("/v1") + "/metrics") as answer:  # noqa: S310  # a server of the caller
        families = text_string_to_metric_families(answer.read().decode())
    [family] = [each for each in families if each.name == _BY_SOURCE]
    totals = [each for each in family.samples if each.name.endswith("_total")]
    return Counter({each.labels["source"]: int(each.value) for each in totals})

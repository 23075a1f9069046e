"""Steps of an edit with a prediction against prompt lookup alone, at fixed costs of steps.

The answer is a file with a change, the prediction is the file. A replayed target writes the answer, so that
the steps depend on the drafts only.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from pathlib import Path

import pytest

from suffixsvc_bench.decode.workload import jobs
from suffixsvc_bench.decode.workload.replay_target import ReplayTarget, SimulatedClock
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.layers.prediction import PredictionLayer
from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer

TASK, END = "You edit files. Answer with the whole file.\n\n", "\n\nThe file:\n"
CURVES = {
    "linear": CostCurve.linear(0.12, 64),
    "two-cores": CostCurve.from_samples({1: 1.0, 2: 1.57, 4: 2.7, 8: 5.8, 16: 6.7, 32: 12.8}),
}
#: steps by which a prediction may exceed prompt lookup
FEW = 2
#: tokens next to edits that may count otherwise than in an alignment
EDGES = 24


def pages() -> list[str]:
    prompts = tomllib.loads(Path(jobs.__file__).with_name("prompts.toml").read_text(encoding="utf-8"))
    return [file["text"].strip() for file in prompts["edit"]["file"]]


def lines_replaced(page: str, count: int, *new: str) -> str:
    lines = page.split("\n")
    at = len(lines) // 2
    return "\n".join([*lines[:at], *new, *lines[at + count :]])


def renamed(page: str) -> str:
    names = set(re.findall(r"\b[a-z_]{4,}\b", page))
    name = max(names, key=lambda name: (page.count(name), name))
    return re.sub(rf"\b{name}\b", f"{name}_item", page)


EDITS: dict[str, Callable[[str], str]] = {
    "none": lambda page: page,
    "line changed": lambda page: lines_replaced(page, 1, "        raise NotImplementedError('later')"),
    "line inserted": lambda page: lines_replaced(page, 0, "    # a new note about this"),
    "line removed": lambda page: lines_replaced(page, 1),
    "lines removed": lambda page: lines_replaced(page, 5),
    "renamed": renamed,
    "code fence": lambda page: f"```python\n{page}\n```",
    "prose": lambda page: f"Here is the whole file after the change:\n\n```python\n{page}\n```\nThat is all.",
}


class Words:
    """Token ids of words, spaces and signs."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def __call__(self, text: str) -> list[int]:
        return [self._ids.setdefault(token, len(self._ids)) for token in re.findall(r"\w+|\s+|[^\w\s]", text)]


def steps(prompt: Sequence[int], answer: Sequence[int], layers: Sequence[Layer], curve: CostCurve) -> int:
    clock = SimulatedClock()
    target = ReplayTarget(10_000, frozenset({9_999}), curve, clock)
    target.truth = answer
    result = generate(target, prompt, None, layers, len(answer), curve=curve, clock=clock)
    assert list(result.token_ids) == list(answer)
    return result.stats.steps


@pytest.mark.parametrize("curve", list(CURVES.values()), ids=list(CURVES))
@pytest.mark.parametrize("edit", list(EDITS))
@pytest.mark.parametrize("page", pages(), ids=["inventory", "report", "queue"])
def test_a_prediction_takes_no_more_steps_than_prompt_lookup(page: str, edit: str, curve: CostCurve) -> None:
    encode = Words()
    with_file, without = encode(f"{TASK}{page}{END}"), encode(f"{TASK}{END}")
    answer, predicted = encode(EDITS[edit](page)), encode(page)
    lookup = steps(with_file, answer, [PromptLookupLayer()], curve)
    layer = PredictionLayer(predicted)
    both = steps(with_file, answer, [layer, PromptLookupLayer()], curve)
    bare = steps(without, answer, [PredictionLayer(predicted), PromptLookupLayer()], curve)
    print(f"{edit}: {len(answer)} plain, {lookup} lookup, {bare} prediction, {both} both")
    assert both <= lookup + FEW
    assert bare <= lookup + FEW, "the prediction stands in for the file in the prompt"
    blocks = SequenceMatcher(None, predicted, answer, autojunk=False).get_matching_blocks()
    common = sum(block.size for block in blocks if block.size > 1)
    assert abs(layer.found - common) <= EDGES

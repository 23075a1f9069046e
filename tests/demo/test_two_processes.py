"""Two processes that draft from each other's live text, and their part of the demo's page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from suffixsvc import SuffixCache
from suffixsvc.errors import ServiceUnavailableError
from suffixsvc_bench.demo import report
from suffixsvc_bench.demo.questions import LIVE, Question
from suffixsvc_bench.demo.two_processes import AHEAD_TOKENS, LiveAnswer, LiveJob, write_together
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.llama.offload import Offload
from suffixsvc_driver.targets.single import LlamaTarget
from support.serving import serving, socket_dir
from support.tiny_gguf import write_tiny_llama

#: F32 and without flash attention, arithmetic does not depend on the width of a batch
SETTINGS = ContextSettings(
    context_size=1024, threads=1, slots=1, max_width=16, kv_type="f32", flash_attention=False
)
#: a step costs the same at any width, so that whatever can be drafted is
CURVE = CostCurve((0.0, *[1.0] * 16), 0.01)
#: the tiny model's answer to it is as long as may be
SAME = (Question("one", "hello"), Question("two", "hello"))


@contextmanager
def job_of(model: Path, questions: tuple[Question, Question]) -> Iterator[tuple[SuffixCache, LiveJob]]:
    with socket_dir() as folder, SuffixCache() as cache, serving(cache, f"unix:{folder}/s") as (_, address):
        yield cache, LiveJob(model, SETTINGS, Offload(), CURVE, address, "live", questions)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "tiny.gguf", context=1024)


def page_of(answers: Sequence[LiveAnswer], path: Path) -> str:
    section = report.Section("s", "e", [each.answer for each in answers], [("both", "of them")])
    report.render(path, title="t", facts=[], sections=[section], token_bytes=lambda token: b"x")
    return path.read_text()


def check_turns(answers: Sequence[LiveAnswer]) -> None:
    """Both wrote in turns, each until it was ahead of the other one."""
    first, second = (each.answer for each in answers)
    turns = sorted((*turn, answer is second) for answer in (first, second) for turn in answer.turns)
    assert [number for number, _, _ in turns] == list(range(1, len(turns) + 1))
    assert [by_second for _, _, by_second in turns[:4]] == [False, True, False, True]
    written = [at for _, at, _ in turns[:4]]
    assert written[2] >= written[1] + AHEAD_TOKENS
    assert written[3] >= written[2] + AHEAD_TOKENS


@pytest.mark.model
def test_each_process_drafts_from_the_live_text_of_the_other(real_model: Path, tmp_path: Path) -> None:
    with job_of(real_model, LIVE) as (cache, job):
        answers = write_together(job, lambda: None)
        assert cache.stats().outputs == 2, "both were stored in the end"
    first, second = answers
    assert first.answer.process.startswith("process A (pid ")
    assert second.answer.process.startswith("process B (pid ")
    assert first.answer.process[-9:] != second.answer.process[-9:]
    check_turns(answers)
    assert first.live_tokens >= AHEAD_TOKENS // 2
    assert second.live_tokens >= AHEAD_TOKENS // 2
    for each in answers:
        assert each.exactness.positions == len(each.answer.result.token_ids)
        assert each.exactness.ok, each.exactness.describe()

    text = page_of(answers, tmp_path / "page.html")
    assert "<td>both</td><td>of them</td>" in text
    _, *parts = re.split(r"<h3>(?=process)", text)
    assert len(parts) == 2
    for part, each in zip(parts, answers, strict=True):
        assert part.startswith(each.answer.process)
        assert part.count('<span class="live" title="live text">') == each.live_tokens
        assert re.findall(r'<sup title="turn (\d+)">\1</sup>', part) == [
            str(number) for number, at in each.answer.turns if at < len(each.answer.result.token_ids)
        ]


def test_what_both_write_is_the_models_own_text(tiny: Path) -> None:
    """Every token is the same as without drafts and without another process."""
    with job_of(tiny, SAME) as (_, job):
        answers = write_together(job, lambda: None)
    check_turns(answers)
    assert all(each.live_tokens > 0 for each in answers)
    first, second = (each.answer for each in answers)
    assert first.result.token_ids == second.result.token_ids
    with LlamaModel(tiny) as model, LlamaTarget(model, SETTINGS) as target:
        target.begin(first.result.prompt_ids)
        plain = [first.result.prompt_ids[-1]]
        for _ in first.result.token_ids:
            plain.append(int(target.compute((plain[-1],))[0].argmax()))
    assert tuple(plain[1:]) == first.result.token_ids


def test_a_process_that_fails_is_told(tiny: Path) -> None:
    tiny.unlink()
    with (
        job_of(tiny, SAME) as (_, job),
        pytest.raises(ServiceUnavailableError, match="ended without its answer"),
    ):
        write_together(job, lambda: None)


def test_an_error_of_the_caller_ends_both(tiny: Path) -> None:
    def check() -> None:
        raise KeyboardInterrupt

    with job_of(tiny, SAME) as (_, job), pytest.raises(KeyboardInterrupt):
        write_together(job, check)

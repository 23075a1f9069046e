"""Two processes that write at the same time, on a tiny random model, and their part of the demo's page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from suffixsvc import SuffixCache
from suffixsvc.errors import ServiceUnavailableError
from suffixsvc_bench.demo import report
from suffixsvc_bench.demo.questions import Question
from suffixsvc_bench.demo.two_processes import LiveJob, live_tokens, write_together
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.llama.offload import Offload
from support.serving import serving, socket_dir
from support.tiny_gguf import write_tiny_llama

#: a step costs the same at any width, so that whatever can be drafted is
CURVE = CostCurve((0.0, *[1.0] * 16), 0.01)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[LiveJob]:
    model = write_tiny_llama(tmp_path / "tiny.gguf", context=1024)
    settings = ContextSettings(context_size=1024, threads=1, slots=1, max_width=16)
    questions = (Question("one", "the same"), Question("two", "the same"))
    with socket_dir() as folder, SuffixCache() as cache, serving(cache, f"unix:{folder}/s") as (_, address):
        yield LiveJob(model, settings, Offload(), CURVE, address, "live", questions)


def test_each_process_drafts_what_the_other_writes(job: LiveJob, tmp_path: Path) -> None:
    first, second = write_together(job, lambda: None)
    assert first.process != second.process
    assert live_tokens([second]) > 0
    page = tmp_path / "page.html"
    report.render(
        page,
        title="t",
        facts=[],
        sections=[report.Section("s", "e", [first, second])],
        token_bytes=lambda token: b"x",
    )
    text = page.read_text()
    assert text.count('<span class="live" title="live text">') == live_tokens([first, second])
    assert first.process in text


def test_a_process_that_fails_is_told(job: LiveJob, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").unlink()
    with pytest.raises(ServiceUnavailableError, match="ended without its answer"):
        write_together(job, lambda: None)

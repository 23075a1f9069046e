"""The worker threads of a load end with it."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from suffixsvc.errors import ModelNotFoundError
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.llama.passing_thread import in_passing_thread
from suffixsvc_driver.targets.parallel import ParallelLlama
from support.serving import eventually


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads in /proc")
def test_no_thread_remains(tiny_model: Path) -> None:
    """One that computes leaves its OpenMP workers otherwise, as far as llama.cpp was built with OpenMP."""
    caller = threading.current_thread()
    before = threads()
    during: list[set[str]] = []

    def load() -> ParallelLlama:
        assert threading.current_thread() is not caller
        target = ParallelLlama(tiny_model, ContextSettings(context_size=256, threads=2, slots=2))
        target.begin(0, [1, 2, 3])
        target.prefill(0)
        during.append(threads())
        return target

    with in_passing_thread(load):
        assert len(during[0] - before) >= 1
        # they end a moment after they were told to
        eventually(lambda: threads() <= before, "the threads of the load have ended")


def test_errors_are_raised(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        in_passing_thread(lambda: ParallelLlama(tmp_path / "none.gguf"))

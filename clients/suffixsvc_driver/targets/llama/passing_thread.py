"""Loading in a thread that ends, so that its OpenMP threads end, too.

llama.cpp computes with OpenMP, which keeps worker threads for each thread that has called it, until that
thread ends. Where they are more than the cores together, GNU's libgomp lets all of them sleep at every
barrier instead of spinning: a model that was loaded in one thread and generated in another took 4 to 5 ms
longer for every step (Qwen2.5-Coder-1.5B, 90 ms, two threads on two cores).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def in_passing_thread(load: Callable[[], T]) -> T:
    """Return ``load()``, called in a thread of its own that has ended afterwards. Raises its errors.

    For models that another thread than the caller's generates with: loading them computes a few batches.
    """
    with ThreadPoolExecutor(1, "suffixsvc-loading") as thread:
        return thread.submit(load).result()

"""The small real model. Being here also makes tests/support importable: pytest puts the folder of a conftest
on sys.path."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

from suffixsvc.errors import ModelNotFoundError
from support.long_form import rounds

# A test is never timed: how long an example takes is the machine's business.
settings.register_profile("untimed", deadline=None, max_examples=rounds(40, full=100))
settings.load_profile("untimed")

# Python's own tracebacks in log lines of these processes: rich's, with the variables of every frame, take a
# tenth of a second each.
_renderer = structlog.get_config()["processors"][-1]
_renderer.exception_formatter = structlog.dev.plain_traceback

# The second thread of numpy's OpenBLAS, which nothing here needs, takes a tenth of a second of CPU time in
# each of the several hundred processes that the tests start, this one included.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

#: Each worker holds models and services of its own; more of them than this gain little and want memory.
_MOST_WORKERS = 4

# A shell that is not interactive ignores SIGINT in what it puts in the background, and so would all
# that the tests start; some of them are interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)  # the hook is pytest-xdist's
def pytest_xdist_auto_num_workers() -> int:
    """Two for each core that this process may use: tests wait for processes, disks and timers a fifth of
    their time. On one core (``taskset``) the tests run one by one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if cores == 1 else min(2 * cores, _MOST_WORKERS)


@contextmanager
def _after_the_first_worker(config: pytest.Config) -> Iterator[None]:
    """Let one worker write the bytecode of all modules, which the others then load.

    To rewrite the assertions and to compile takes half of a collection. Workers start at the same time, so
    each of them did it. The first one to lock this file excludes the others; those share the lock.
    """
    if not hasattr(config, "workerinput") or sys.dont_write_bytecode:
        yield
        return
    with Path(__file__).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect the tests without collecting garbage, and exempt what exists by then from later collections.

    Each worker compiles and imports the modules of all tests, which creates millions of objects and hardly
    any cycle: to traverse them meanwhile takes a quarter of that time, and later a part of every collection.
    """
    gc.disable()
    try:
        with _after_the_first_worker(session.config):
            return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def real_model() -> Path:
    """Path of smollm2-135m: SUFFIXSVC_TEST_MODEL, or what ``suffixsvc models get`` downloaded."""
    given = os.environ.get("SUFFIXSVC_TEST_MODEL")
    if given:
        return Path(given)
    import suffixsvc_models as models

    try:
        return models.path("smollm2-135m")
    except ModelNotFoundError as err:
        pytest.skip(f"{err} (suffixsvc models get smollm2-135m)")

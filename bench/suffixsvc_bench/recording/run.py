"""Execution of a recording: the order of tasks, and the files of their answers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.recording.answers import AnswerFile
from suffixsvc_bench.recording.batch_generator import BatchGenerator, settings_for
from suffixsvc_bench.recording.options import RecordingOptions
from suffixsvc_bench.speculation.recorded_call import RecordedCall
from suffixsvc_bench.workloads import Task, load_workload
from suffixsvc_driver.targets.llama.machine import usable_cores
from suffixsvc_driver.targets.llama.offload import Offload

#: expected tokens of the first answer
GUESS: Final = 100


@dataclass(slots=True)
class WorkloadProgress:
    """Progress of a workload.

    Attributes:
        tasks: number of tasks.
        recorded: tasks with an answer in the file.
        recorded_now: of them, recorded by this run.
        begun: answers in progress.
        tokens: response tokens in the file.
        tokens_now: of them, of this run.
        finish_now: finish reasons of this run's answers.
    """

    tasks: int
    recorded: int
    tokens: int
    recorded_now: int = 0
    tokens_now: int = 0
    begun: int = 0
    finish_now: dict[str, int] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Tasks without an answer."""
        return self.tasks - self.recorded

    @property
    def expected(self) -> float:
        """Expected tokens in the file after the answers in progress, at average length."""
        return self.tokens + self.begun * (self.tokens + GUESS) / (self.recorded + 1)

    def count(self, call: RecordedCall) -> None:
        """Count a finished answer."""
        self.begun -= 1
        self.recorded += 1
        self.recorded_now += 1
        self.tokens += len(call.token_ids)
        self.tokens_now += len(call.token_ids)
        self.finish_now[call.finish] = self.finish_now.get(call.finish, 0) + 1


class Recording:
    """A run over some workloads on a loaded model, made by :func:`open_recording`.

    Attributes:
        workload_progress: progress by workload.
    """

    def __init__(
        self, model: BatchGenerator, tasks: Mapping[str, Sequence[Task]], files: Mapping[str, AnswerFile]
    ) -> None:
        self._model, self._files = model, files
        self._waiting: dict[str, deque[Task]] = {}
        self.workload_progress: dict[str, WorkloadProgress] = {}
        for name, its_tasks in tasks.items():
            tokens = files[name].recorded
            waiting = self._waiting[name] = deque(task for task in its_tasks if task.id not in tokens)
            recorded = len(its_tasks) - len(waiting)
            self.workload_progress[name] = WorkloadProgress(len(its_tasks), recorded, sum(tokens.values()))
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since the first answer began."""
        return time.perf_counter() - self._began

    def run(self, on_task: Callable[[Task], None]) -> None:
        """Record the missing answers; call ``on_task`` after each task whose answer is in its file."""
        self._began = time.perf_counter()
        for task, call in self._model.answers(self._next_tasks()):
            self._files[task.workload].add(task, call)
            self.workload_progress[task.workload].count(call)
            on_task(task)

    def _next_tasks(self) -> Iterator[Task]:
        """Yield a task of the workload with the fewest expected tokens.

        All workloads are therefore usable if the run is interrupted.
        """
        while waiting := [name for name, tasks in self._waiting.items() if tasks]:
            name = min(waiting, key=lambda name: self.workload_progress[name].expected)
            self.workload_progress[name].begun += 1
            yield self._waiting[name].popleft()


@contextmanager
def open_recording(options: RecordingOptions, on_step: Callable[[], None]) -> Iterator[Recording]:
    """Open the files and load the model.

    Args:
        on_step: called after every step of the model; an exception ends the run.

    Raises:
        InvalidInputError: a workload is unknown or repeated, the folder cannot be created, or a file is of
            another model (see :class:`AnswerFile`).
        ModelError: the model cannot be loaded.
    """
    if not options.workloads or len(set(options.workloads)) != len(options.workloads):
        raise InvalidInputError(
            "workloads must be named once each, at least one", got=" ".join(options.workloads)
        )
    tasks = {name: load_workload(name)[: options.limit or None] for name in options.workloads}
    try:
        options.out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(
            f"--out-dir must be a folder that can be created: {options.out_dir}", got=error.strerror
        ) from None
    file = Path(options.model)
    with ExitStack() as stack:
        threads = options.threads or usable_cores()
        settings = settings_for(threads, options.width, options.kv_type_or_default)
        generator = BatchGenerator(file, settings, on_step, offload=Offload.of(options))
        model = stack.enter_context(generator)
        fingerprint = model.model.vocabulary.fingerprint
        files = {
            name: stack.enter_context(
                AnswerFile(options.out_dir / f"{name}.jsonl", model=file.stem, tokenizer=fingerprint)
            )
            for name in tasks
        }
        yield Recording(model, tasks, files)

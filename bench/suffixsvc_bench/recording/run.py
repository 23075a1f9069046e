"""Which task is next, and where its answer goes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.recorded_call import RecordedCall
from suffixsvc_bench.recording.answers import AnswerFile
from suffixsvc_bench.recording.side_by_side import SideBySide, settings_for
from suffixsvc_bench.workloads import Task, load_workload

__all__ = ["Recording", "RecordingOptions", "WorkloadTally", "open_recording"]

#: tokens of an answer, before any was seen
GUESS: Final = 100


@dataclass(frozen=True, slots=True)
class RecordingOptions:
    """What the command line asked for.

    Attributes:
        workloads: their names.
        out_dir: folder of the files, WORKLOAD.jsonl each; made where it is missing.
        model: the model's file.
        threads: of the model.
        width: answers under way at once.
        limit: only the first so many tasks of each workload; 0 = all.
    """

    workloads: tuple[str, ...]
    out_dir: Path
    model: Path
    threads: int
    width: int = 32
    limit: int = 0


@dataclass(slots=True)
class WorkloadTally:
    """How far a workload is.

    Attributes:
        tasks: there are.
        recorded: of them, have their answers in the file.
        recorded_now: of them, by this run.
        begun: answers under way.
        tokens: response tokens in the file.
        tokens_now: of them, this run's.
        finish_now: how this run's answers ended.
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
        return self.tasks - self.recorded

    @property
    def expected(self) -> float:
        """Tokens in the file once what is under way has ended, its answers being of average length."""
        return self.tokens + self.begun * (self.tokens + GUESS) / (self.recorded + 1)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def count(self, call: RecordedCall) -> None:
        self.begun -= 1
        self.recorded += 1
        self.recorded_now += 1
        self.tokens += len(call.token_ids)
        self.tokens_now += len(call.token_ids)
        self.finish_now[call.finish] = self.finish_now.get(call.finish, 0) + 1


@dataclass(slots=True)
class _Workload:
    """One workload of a run."""

    file: AnswerFile
    waiting: deque[Task]
    tally: WorkloadTally


class Recording:
    """A run of some workloads on an open model. Made by :func:`open_recording`.

    Attributes:
        seconds: what the answers took so far.
    """

    def __init__(self, model: SideBySide, workloads: Mapping[str, _Workload]) -> None:
        self._model = model
        self._workloads = workloads
        self._began = time.perf_counter()

    @property
    def tallies(self) -> dict[str, WorkloadTally]:
        return {name: workload.tally for name, workload in self._workloads.items()}

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def run(self, on_task: Callable[[Task], None]) -> None:
        """Record what is missing; ``on_task`` is called after each task whose answer is in its file."""
        self._began = time.perf_counter()
        for task, call in self._model.answers(self._next_tasks()):
            workload = self._workloads[task.workload]
            workload.file.add(task, call)
            workload.tally.count(call)
            on_task(task)

    def _next_tasks(self) -> Iterator[Task]:
        """Always a task of the workload that will have the fewest tokens, so that all of them are of use
        wherever this is interrupted."""
        while waiting := [workload for workload in self._workloads.values() if workload.waiting]:
            workload = min(waiting, key=lambda each: each.tally.expected)
            workload.tally.begun += 1
            yield workload.waiting.popleft()


@contextmanager
def open_recording(options: RecordingOptions, on_step: Callable[[], None]) -> Iterator[Recording]:
    """Open files and model.

    Args:
        on_step: called after every step of the model; what it raises ends the run.

    Raises:
        InvalidInputError: no such workload, one named twice, a folder that cannot be made, files of another
            model (see :class:`AnswerFile`).
        ModelError: the model cannot be loaded.
    """
    if not options.workloads or len(set(options.workloads)) != len(options.workloads):
        raise InvalidInputError(
            "name each workload once", expected="at least one", got=" ".join(options.workloads) or "none"
        )
    tasks = {name: load_workload(name)[: options.limit or None] for name in options.workloads}
    try:
        options.out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(f"cannot make the folder {options.out_dir}", got=error.strerror) from None
    with ExitStack() as stack:
        model = stack.enter_context(
            SideBySide(options.model, settings_for(options.threads, options.width), on_step)
        )
        fingerprint = model.model.vocabulary.fingerprint
        workloads = {}
        for name, all_of_it in tasks.items():
            path = options.out_dir / f"{name}.jsonl"
            file = stack.enter_context(AnswerFile(path, model=options.model.stem, tokenizer=fingerprint))
            workloads[name] = _missing(all_of_it, file)
        yield Recording(model, workloads)


def _missing(tasks: Sequence[Task], file: AnswerFile) -> _Workload:
    tokens = {held.task: held.tokens for held in file.held}
    waiting = deque(task for task in tasks if task.id not in tokens)
    recorded = len(tasks) - len(waiting)
    return _Workload(file, waiting, WorkloadTally(len(tasks), recorded, sum(tokens.values())))

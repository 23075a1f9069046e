"""Workloads of `bench decode`: jobs for the model, and answered jobs that warm the namespace.

sql, json, python   the demo's agents: the first pass of questions is the warm-up, later passes are measured
log                 prompts of a recorded log, in order; no warm-up
files               one question to the model per file; no warm-up
chat                questions of all kinds; no warm-up
edit                files and changes to make in them, several per file; no warm-up
repeat              jobs of sql, json and edit that were answered before
"""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.demo import database
from suffixsvc_bench.demo.agents import PLANNER, PYTHON_WRITER, REPORTER, SQL_WRITER
from suffixsvc_bench.demo.pipeline import Call, answer_question
from suffixsvc_bench.demo.questions import FIRST_PASS, SECOND_PASS, THIRD_PASS, Question
from suffixsvc_bench.replay.logs import read_calls
from suffixsvc_driver.targets.llama.model import LlamaModel

__all__ = ["WORKLOADS", "AnsweredJob", "Job", "Workload", "check_workloads", "load_workloads"]

WORKLOADS: Final = ("sql", "json", "python", "log", "files", "chat", "edit", "repeat")
#: workload -> agents of the demo that make its calls
_AGENTS: Final = {
    "sql": (SQL_WRITER.name,),
    "json": (PLANNER.name, REPORTER.name),
    "python": (PYTHON_WRITER.name,),
}
_PROMPTS: Final = Path(__file__).with_name("prompts.toml")


@dataclass(frozen=True, slots=True)
class Job:
    """One call to the model.

    Attributes:
        key: unique within its workload.
        agent: label of the call; the driver's learned state is kept by agent.
        prompt_ids: the prompt, special tokens included.
        max_tokens: limit of the answer.
    """

    workload: str
    key: str
    agent: str
    prompt_ids: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class AnsweredJob:
    """A job and the tokens that the model wrote for it."""

    job: Job
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """A list of jobs with a warm-up.

    Attributes:
        jobs: measured, in this order.
        warmup: contents of the namespace before the first job.
    """

    name: str
    jobs: Sequence[Job]
    warmup: Sequence[AnsweredJob] = field(default_factory=tuple)


#: answers a job by plain decoding
Answer = Callable[[Job], Sequence[int]]


def check_workloads(names: Sequence[str], log: Path | None, files: Sequence[Path]) -> None:
    """Check that the workloads are known and their files exist.

    Raises:
        InvalidInputError: a name is unknown, or a file is missing.
    """
    for name in names:
        if name not in WORKLOADS:
            raise InvalidInputError("--workload must be known", expected=", ".join(WORKLOADS), got=repr(name))
    if "log" in names and (log is None or not log.is_file()):
        raise InvalidInputError("--log must be a file with the workload log", got=str(log))
    if "files" in names and not files:
        raise InvalidInputError("--file must be given with the workload files")
    for file in files:
        if not file.is_file():
            raise InvalidInputError("--file must be a file", got=str(file))


def load_workloads(
    names: Sequence[str],
    model: LlamaModel,
    answer: Answer,
    *,
    calls: int,
    context: int,
    log: Path | None = None,
    files: Sequence[Path] = (),
    max_tokens: int = 160,
) -> list[Workload]:
    """Load workloads, each with at most ``calls`` jobs that fit into ``context`` tokens.

    Args:
        answer: called for texts that must exist before: in the demo's passes, an agent's prompt contains the
            answer of the agent before it.
        log: of the workload "log": a recorded log.
        files: of the workload "files": one prompt each, UTF-8.
        max_tokens: limit of an answer where the workload does not define one.

    Raises:
        InvalidInputError: a workload is unknown, a log or a file cannot be read, or no prompt fits.
    """
    check_workloads(names, log, files)
    loader = _WorkloadLoader(model, answer, calls, context, max_tokens)
    return [loader.load(name, log, files) for name in names]


class _WorkloadLoader:
    def __init__(self, model: LlamaModel, answer: Answer, calls: int, context: int, max_tokens: int) -> None:
        self._model, self._answer = model, answer
        self._calls, self._context, self._max_tokens = calls, context, max_tokens
        self._passes: dict[str, list[AnsweredJob]] = {}

    def load(self, name: str, log: Path | None, files: Sequence[Path]) -> Workload:
        if name in _AGENTS:
            return self._agents(name)
        if name == "log" and log is not None:
            return self._log(log)
        if name == "files":
            return self._files(files)
        if name == "repeat":
            return self._repeat()
        return Workload(name, self._limited(self._prompts(name)))

    def _agents(self, name: str) -> Workload:
        jobs: list[Job] = []
        for questions in (SECOND_PASS, THIRD_PASS):
            if len(jobs) < self._calls:
                selected = [w.job for w in self._pass(questions) if w.job.agent in _AGENTS[name]]
                jobs += [Job(name, j.key, j.agent, j.prompt_ids, j.max_tokens) for j in selected]
        return Workload(name, self._limited(jobs), self._pass(FIRST_PASS))

    def _pass(self, questions: Sequence[Question]) -> list[AnsweredJob]:
        """All calls of the demo over these questions, answered once."""
        key = questions[0].key
        if key not in self._passes:
            with tempfile.TemporaryDirectory() as folder:
                shop = Path(folder) / "shop.sqlite"
                database.create(shop)
                self._passes[key] = self._write_pass(questions, shop)
        return self._passes[key]

    def _write_pass(self, questions: Iterable[Question], shop: Path) -> list[AnsweredJob]:
        answered: list[AnsweredJob] = []

        def one_call(call: Call) -> str:
            job = self._job("demo", call.name, call.agent.name, call.messages, call.agent.max_tokens)
            ids = tuple(self._answer(job))
            answered.append(AnsweredJob(job, ids))
            return self._model.detokenize([i for i in ids if i not in self._model.eog_ids])

        for question in questions:
            answer_question(question, one_call, shop)
        return answered

    def _log(self, log: Path) -> Workload:
        jobs = []
        for i, call in enumerate(read_calls(log, self._model.token_array)):
            available = self._context - self._max_tokens - 8
            ids = tuple(int(t) for t in call.prompt[-available:].tolist())
            if ids:
                tokens = min(self._max_tokens, max(16, len(call.response)))
                jobs.append(Job("log", f"call-{i}", call.agent or "log", ids, tokens))
            if len(jobs) >= self._calls:
                break
        if not jobs:
            raise InvalidInputError(f"{log} must have a prompt")
        return Workload("log", jobs)

    def _files(self, files: Sequence[Path]) -> Workload:
        jobs = []
        for file in files:
            try:
                text = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as err:
                raise InvalidInputError(f"{file} must be readable UTF-8 text", got=str(err)) from None
            jobs.append(self._job("files", file.name, "files", [_user(text)], self._max_tokens))
        fitting = self._limited(jobs)
        if not fitting:
            raise InvalidInputError(
                f"--file must have at most {self._context - 16} tokens",
                got=", ".join(str(len(job.prompt_ids)) for job in jobs),
                remedy="Increase --context.",
            )
        return Workload("files", fitting)

    def _repeat(self) -> Workload:
        """Agents' calls that are repeated, and a file that is edited again."""
        second = self._pass(SECOND_PASS)
        edits = self._prompts("edit")
        share = max(1, self._calls // 2)
        again = [w for w in second if w.job.agent != PYTHON_WRITER.name][:share]
        answered = [AnsweredJob(job, tuple(self._answer(job))) for job in edits[: self._calls - len(again)]]
        both = [*again, *answered]
        jobs = [Job("repeat", w.job.key, w.job.agent, w.job.prompt_ids, w.job.max_tokens) for w in both]
        return Workload("repeat", self._limited(jobs), both)

    def _prompts(self, name: str) -> list[Job]:
        data: dict[str, Any] = tomllib.loads(_PROMPTS.read_text(encoding="utf-8"))
        jobs: list[Job] = []
        if name == "chat":
            for i, text in enumerate(data["chat"]["questions"]):
                jobs.append(self._job("chat", f"chat-{i}", "chat", [_user(text)], self._max_tokens))
            return jobs
        system = data["edit"]["system"]
        for file in data["edit"]["file"]:
            for i, change in enumerate(file["changes"]):
                text = f"{change}\n\n```python\n{file['text'].strip()}\n```"
                messages = [{"role": "system", "content": system}, _user(text)]
                tokens = max(self._max_tokens, len(self._model.tokenize(file["text"])) + 40)
                jobs.append(self._job("edit", f"{file['name']}-{i}", "edit", messages, tokens))
        return jobs

    def _job(
        self, workload: str, key: str, agent: str, messages: Sequence[dict[str, str]], max_tokens: int
    ) -> Job:
        ids = tuple(self._model.tokenize(self._model.chat(messages)))
        return Job(workload, key, agent, ids, max_tokens)

    def _limited(self, jobs: Sequence[Job]) -> list[Job]:
        fitting = [job for job in jobs if len(job.prompt_ids) + 16 <= self._context]
        return fitting[: self._calls]


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}

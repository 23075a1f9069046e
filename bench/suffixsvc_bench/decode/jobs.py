"""What the model is asked, by workload; and what it wrote before, which warms the memory.

sql, json, python   the demo's agents: the first pass of questions warms, the ones after it are measured
log                 the prompts of a recorded log, in order; nothing but their own answers warms
files               a question to the model in each file; likewise
chat                questions of all kinds; likewise
edit                a file and what to change in it, several times over the same files
repeat              the sql, json and edit jobs once more, after they were answered
"""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from suffixsvc_driver.targets.llama_model import LlamaModel

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.demo import database
from suffixsvc_bench.demo.agents import PLANNER, PYTHON_WRITER, REPORTER, SQL_WRITER
from suffixsvc_bench.demo.pipeline import Call, answer_question
from suffixsvc_bench.demo.questions import FIRST_PASS, SECOND_PASS, THIRD_PASS, Question
from suffixsvc_bench.replay.logs import read_calls

__all__ = ["WORKLOADS", "Job", "Workload", "Written", "check_workloads", "load_workloads"]

WORKLOADS: Final = ("sql", "json", "python", "log", "files", "chat", "edit", "repeat")
#: workload -> the demo's agents whose calls it is made of
_AGENTS: Final = {
    "sql": (SQL_WRITER.name,),
    "json": (PLANNER.name, REPORTER.name),
    "python": (PYTHON_WRITER.name,),
}
_PROMPTS: Final = Path(__file__).with_name("prompts.toml")


@dataclass(frozen=True, slots=True)
class Job:
    """One call.

    Attributes:
        key: unique within its workload.
        agent: whose call it is; what is learned about drafts is kept by agent.
        prompt_ids: the prompt, special tokens included.
        max_tokens: the most tokens of the answer.
    """

    workload: str
    key: str
    agent: str
    prompt_ids: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Written:
    """A job and what the model wrote for it."""

    job: Job
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload.

    Attributes:
        jobs: what is measured, in this order.
        warming: what the memory holds before that.
    """

    name: str
    jobs: Sequence[Job]
    warming: Sequence[Written] = field(default_factory=tuple)


#: answers a job plainly
Answer = Callable[[Job], Sequence[int]]


def check_workloads(names: Sequence[str], log: Path | None, files: Sequence[Path]) -> None:
    """Whether :func:`load_workloads` knows these names and finds what they need.

    Raises:
        InvalidInputError: it does not.
    """
    for name in names:
        if name not in WORKLOADS:
            raise InvalidInputError("no such workload", expected=", ".join(WORKLOADS), got=repr(name))
    if "log" in names and (log is None or not log.is_file()):
        got = "none" if log is None else f"no file {log}"
        raise InvalidInputError("the workload log needs a log", expected="--log FILE", got=got)
    if "files" in names and not files:
        raise InvalidInputError("--file names nothing", expected="at least one", got="none")
    for file in files:
        if not file.is_file():
            raise InvalidInputError("no such file of prompts", expected="--file FILE", got=str(file))


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
    """The workloads of these names, each of at most ``calls`` jobs that fit into ``context`` tokens.

    Args:
        answer: called for what must be written before: the demo's passes, in which an agent's prompt holds
            what the one before it wrote.
        log: for "log": a recorded log of prompts.
        files: for "files": a prompt each, UTF-8.
        max_tokens: of an answer, where the workload does not say.

    Raises:
        InvalidInputError: no such workload, "log" without a log, a log or a file that cannot be read, nothing
            in it that fits.
    """
    check_workloads(names, log, files)
    maker = _Maker(model, answer, calls, context, max_tokens)
    return [maker.make(name, log, files) for name in names]


class _Maker:
    def __init__(self, model: LlamaModel, answer: Answer, calls: int, context: int, max_tokens: int) -> None:
        self._model, self._answer = model, answer
        self._calls, self._context, self._max_tokens = calls, context, max_tokens
        self._passes: dict[str, list[Written]] = {}
        self._warm: dict[str, Written] = {}

    def make(self, name: str, log: Path | None, files: Sequence[Path]) -> Workload:
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
                of_them = [w.job for w in self._pass(questions) if w.job.agent in _AGENTS[name]]
                jobs += [Job(name, j.key, j.agent, j.prompt_ids, j.max_tokens) for j in of_them]
        return Workload(name, self._limited(jobs), self._pass(FIRST_PASS))

    def _pass(self, questions: Sequence[Question]) -> list[Written]:
        """All calls of the demo over these questions, written once."""
        key = questions[0].key
        if key not in self._passes:
            with tempfile.TemporaryDirectory() as folder:
                shop = Path(folder) / "shop.sqlite"
                database.create(shop)
                self._passes[key] = self._write_pass(questions, shop)
        return self._passes[key]

    def _write_pass(self, questions: Iterable[Question], shop: Path) -> list[Written]:
        written: list[Written] = []

        def one_call(call: Call) -> str:
            job = self._job("demo", call.name, call.agent.name, call.messages, call.agent.max_tokens)
            ids = tuple(self._answer(job))
            written.append(Written(job, ids))
            return self._model.detokenize([i for i in ids if i not in self._model.eog_ids])

        for question in questions:
            answer_question(question, one_call, shop)
        return written

    def _log(self, log: Path) -> Workload:
        jobs = []
        for i, call in enumerate(read_calls(log, self._model.token_array)):
            room = self._context - self._max_tokens - 8
            ids = tuple(int(t) for t in call.prompt[-room:].tolist())
            if ids:
                tokens = min(self._max_tokens, max(16, len(call.response)))
                jobs.append(Job("log", f"call-{i}", call.agent or "log", ids, tokens))
            if len(jobs) >= self._calls:
                break
        if not jobs:
            raise InvalidInputError(f"{log} has no prompt", expected="a log with prompts", got="none")
        return Workload("log", jobs)

    def _files(self, files: Sequence[Path]) -> Workload:
        jobs = []
        for file in files:
            try:
                text = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as err:
                raise InvalidInputError(
                    f"{file} cannot be read", expected="UTF-8 text", got=str(err)
                ) from None
            jobs.append(self._job("files", file.name, "files", [_user(text)], self._max_tokens))
        fitting = self._limited(jobs)
        if not fitting:
            raise InvalidInputError(
                "no file fits as a prompt",
                expected=f"at most {self._context - 16} tokens",
                got=", ".join(str(len(job.prompt_ids)) for job in jobs),
                remedy="Take a larger --context.",
            )
        return Workload("files", fitting)

    def _repeat(self) -> Workload:
        """Agents that do the same again, and a file that is edited again."""
        second = self._pass(SECOND_PASS)
        edits = self._prompts("edit")
        share = max(1, self._calls // 2)
        again = [w for w in second if w.job.agent != PYTHON_WRITER.name][:share]
        written = [Written(job, tuple(self._answer(job))) for job in edits[: self._calls - len(again)]]
        both = [*again, *written]
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

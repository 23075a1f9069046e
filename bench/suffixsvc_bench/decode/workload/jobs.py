"""Workloads of `bench decode`: jobs for the model, and answered jobs that warm the namespace.

sql, json, python   the demo's agents: the first pass of questions is the warm-up, later passes are measured
log                 prompts of a recorded log, in order; no warm-up
files               one question to the model per file; no warm-up
chat                questions of all kinds; no warm-up
edit                files and changes to make in them, several per file; no warm-up
summary             documents to summarise, each in several ways; no warm-up
document-qa         questions about documents, several per document; no warm-up
conversation        turns of conversations, each with all turns and answers before it; no warm-up
repeat              jobs of sql, json and edit that were answered before
"""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.demo import database
from suffixsvc_bench.demo.agents import PLANNER, PYTHON_WRITER, REPORTER, SQL_WRITER
from suffixsvc_bench.demo.pipeline import Call, answer_question
from suffixsvc_bench.demo.questions import FIRST_PASS, SECOND_PASS, THIRD_PASS, Question
from suffixsvc_bench.replay.logs import read_calls
from suffixsvc_bench.speculation.recorded_call import text_of
from suffixsvc_driver.targets.llama.model import LlamaModel

SUMMARY: Final = "summary"
DOCUMENT_QA: Final = "document-qa"
CONVERSATION: Final = "conversation"
WORKLOADS: Final = (
    *("sql", "json", "python", "log", "files", "chat", "edit", "repeat"),
    *(SUMMARY, DOCUMENT_QA, CONVERSATION),
)
#: workload -> agents of the demo that make its calls
_AGENTS: Final = {
    "sql": (SQL_WRITER.name,),
    "json": (PLANNER.name, REPORTER.name),
    "python": (PYTHON_WRITER.name,),
}
#: tokens of an answer in a conversation: twenty turns fit into a context of 2,048
_TURN_TOKENS: Final = 64


@dataclass(frozen=True, slots=True)
class Job:
    """One call to the model.

    Attributes:
        key: unique within its workload.
        agent: label of the call; the driver's learned state is kept by agent.
        prompt_ids: the prompt, special tokens included.
        max_tokens: limit of the answer.
    """

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


@dataclass(frozen=True, slots=True)
class WorkloadChoice:
    """Workloads of a run.

    Attributes:
        names: of :data:`WORKLOADS`.
        calls: maximum number of jobs of each workload.
        max_tokens: maximum tokens of an answer of the workloads that have no limit of their own.
        context: tokens of a prompt and its answer together.
        log: recorded log for the workload log.
        files: prompts of the workload files.
    """

    names: tuple[str, ...]
    calls: int
    max_tokens: int
    context: int
    log: Path | None = None
    files: tuple[Path, ...] = ()


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


def load_workloads(choice: WorkloadChoice, model: LlamaModel, answer: Answer) -> list[Workload]:
    """Load workloads, each with the jobs that fit into the context.

    Args:
        answer: called for texts that must exist before: in the demo's passes, an agent's prompt contains the
            answer of the agent before it.

    Raises:
        InvalidInputError: a log or a file cannot be read, or no prompt fits.
    """
    loader = _WorkloadLoader(choice, model, answer)
    return [loader.load(name) for name in choice.names]


class _WorkloadLoader:
    def __init__(self, choice: WorkloadChoice, model: LlamaModel, answer: Answer) -> None:
        self._choice, self._model, self._answer = choice, model, answer
        self._context = choice.context - choice.max_tokens
        self._passes: dict[str, list[AnsweredJob]] = {}
        self._prompts = read_texts("prompts")

    def load(self, name: str) -> Workload:
        if name in _AGENTS:
            return self._agents(name)
        if name == "log":
            return self._log()
        if name == "files":
            return self._files()
        if name == "repeat":
            return self._repeat()
        jobs = {
            "chat": self._chat,
            "edit": self._edits,
            SUMMARY: self._summaries,
            DOCUMENT_QA: self._document_questions,
            CONVERSATION: self._turns,
        }
        return Workload(name, self._limited(jobs[name]()))

    def _agents(self, name: str) -> Workload:
        jobs: list[Job] = []
        for questions in (SECOND_PASS, THIRD_PASS):
            if len(jobs) < self._choice.calls:
                jobs += [w.job for w in self._pass(questions) if w.job.agent in _AGENTS[name]]
        return Workload(name, self._limited(jobs), self._pass(FIRST_PASS))

    def _pass(self, questions: Sequence[Question]) -> list[AnsweredJob]:
        """All calls of the demo over these questions, answered once."""
        key = questions[0].key
        if key in self._passes:
            return self._passes[key]
        answered: list[AnsweredJob] = []

        def one_call(call: Call) -> str:
            job = self._job(call.name, call.agent.name, call.messages, call.agent.max_tokens)
            answered.append(AnsweredJob(job, tuple(self._answer(job))))
            return text_of(self._model, answered[-1].token_ids)

        with tempfile.TemporaryDirectory() as folder:
            shop = Path(folder) / "shop.sqlite"
            database.create(shop)
            for question in questions:
                answer_question(question, one_call, shop)
        self._passes[key] = answered
        return answered

    def _log(self) -> Workload:
        log, most = self._choice.log, self._choice.max_tokens
        assert log is not None, "checked by check_workloads"
        jobs = []
        for i, call in enumerate(read_calls(log, self._model.token_array)):
            ids = tuple(call.prompt[-(self._context - most - 8) :].tolist())
            if ids:
                tokens = min(most, max(16, len(call.response)))
                jobs.append(Job(f"call-{i}", call.agent or "log", ids, tokens))
            if len(jobs) >= self._choice.calls:
                break
        if not jobs:
            raise InvalidInputError(f"{log} must have a prompt")
        return Workload("log", jobs)

    def _files(self) -> Workload:
        jobs = []
        for file in self._choice.files:
            try:
                text = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as err:
                raise InvalidInputError(f"{file} must be readable UTF-8 text", got=str(err)) from None
            jobs.append(self._job(file.name, "files", [_user(text)]))
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
        calls, edits = self._choice.calls, self._edits()
        again = [w for w in self._pass(SECOND_PASS) if w.job.agent != PYTHON_WRITER.name]
        again = again[: max(1, calls // 2)]
        again += [AnsweredJob(job, tuple(self._answer(job))) for job in edits[: calls - len(again)]]
        return Workload("repeat", self._limited([answered.job for answered in again]), again)

    def _chat(self) -> list[Job]:
        questions = self._prompts["chat"]["questions"]
        return [self._job(f"chat-{i}", "chat", [_user(text)]) for i, text in enumerate(questions)]

    def _edits(self) -> list[Job]:
        jobs: list[Job] = []
        system = {"role": "system", "content": self._prompts["edit"]["system"]}
        for file in self._prompts["edit"]["file"]:
            tokens = max(self._choice.max_tokens, len(self._model.tokenize(file["text"])) + 40)
            for i, change in enumerate(file["changes"]):
                text = f"{change}\n\n```python\n{file['text'].strip()}\n```"
                jobs.append(self._job(f"{file['name']}-{i}", "edit", [system, _user(text)], tokens))
        return jobs

    def _summaries(self) -> list[Job]:
        documents = read_texts("documents")
        return [
            self._about(document, documents["system"], text, f"{document['name']}-{i}", SUMMARY)
            for i, text in enumerate(documents["instructions"])
            for document in documents["document"]
        ]

    def _document_questions(self) -> list[Job]:
        documents = read_texts("documents")
        return [
            self._about(
                document,
                documents["system"],
                f"{documents['answer']}\n\nQuestion: {question}",
                f"{document['name']}-{i}",
                DOCUMENT_QA,
            )
            for document in documents["document"]
            for i, question in enumerate(document["questions"])
        ]

    def _about(self, document: dict[str, Any], system: str, task: str, key: str, agent: str) -> Job:
        """A task about a document, which precedes it: the tasks about one document share a prefix."""
        text = f"Document:\n\n{document['text'].strip()}\n\n{task}"
        return self._job(key, agent, [{"role": "system", "content": system}, _user(text)])

    def _turns(self) -> list[Job]:
        jobs: list[Job] = []
        for conversation in read_texts("conversations")["conversation"]:
            messages = [{"role": "system", "content": conversation["system"]}]
            for number, question in enumerate(conversation["questions"]):
                messages.append(_user(question))
                most = min(_TURN_TOKENS, self._choice.max_tokens)
                job = self._job(f"{conversation['name']}-{number}", conversation["name"], messages, most)
                if len(jobs) >= self._choice.calls or not self._fits(job):
                    break  # the answers of later turns would be written for nothing
                jobs.append(job)
                answer = text_of(self._model, tuple(self._answer(job)))
                messages.append({"role": "assistant", "content": answer})
        return jobs

    def _job(
        self, key: str, agent: str, messages: Sequence[dict[str, str]], max_tokens: int | None = None
    ) -> Job:
        ids = tuple(self._model.tokenize(self._model.chat(messages)))
        return Job(key, agent, ids, max_tokens or self._choice.max_tokens)

    def _limited(self, jobs: Sequence[Job]) -> list[Job]:
        return [job for job in jobs if self._fits(job)][: self._choice.calls]

    def _fits(self, job: Job) -> bool:
        return len(job.prompt_ids) + 16 <= self._context


def read_texts(name: str) -> dict[str, Any]:
    """Contents of the file NAME.toml beside this module."""
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}

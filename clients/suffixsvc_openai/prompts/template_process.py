"""Process that renders the chat templates of one model (``template_worker.py``), and its bounds."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import InvalidInputError, LimitExceededError, ModelError
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc_openai.prompts.bounded_exchange import exchange, framed

_PROGRAM: Final = Path(__file__).with_name("template_worker.py")
#: seconds for a killed process to end; one that the kernel holds is left to it
_REAP_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """Bounds of rendering one prompt.

    Attributes:
        cpu_seconds: CPU time; a long conversation takes milliseconds.
        memory_bytes: address space of the process that renders, 60 MB of which the interpreter takes.
        max_characters: length of the prompt.
        wall_seconds: time until the answer. Only a process that is stopped, or a machine that is overloaded
            far too much, needs longer than its CPU time.
    """

    cpu_seconds: float = 2.0
    memory_bytes: int = 1 << 30
    max_characters: int = 1 << 24
    wall_seconds: float = 30.0


class TemplateProcess(ClosedOnExit):
    """Renders templates. Thread-safe: one request at a time. A process that was ended is started again.

    Args:
        templates: texts, by name.
        limits: bounds of one prompt.

    Attributes:
        variables: the names that each template reads.

    Raises:
        InvalidInputError: a template is malformed.
        LimitExceededError: compiling it exceeds the limits.
    """

    def __init__(self, templates: Mapping[str, str], limits: TemplateLimits) -> None:
        self._limits = limits
        self._first = _encoded({"templates": dict(templates), **asdict(limits)})
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stop: weakref.finalize[..., Any] | None = None  # for a template that is not closed
        self._closed = False
        try:
            found = self._value(self._start())
        except BaseException:
            self._end()
            raise
        self.variables: dict[str, frozenset[str]] = {name: frozenset(read) for name, read in found.items()}

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """Return the text of a template.

        Args:
            template: its name.
            variables: data of JSON.

        Raises:
            InvalidInputError: the template refuses the variables, or fails on them.
            LimitExceededError: it exceeds the limits.
            ModelError: closed, or the process cannot be kept running.
        """
        try:
            request = _encoded({"template": template, "variables": variables})
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInputError("messages and tools must be JSON", got=str(error)[:120]) from None
        with self._lock:
            answer = self._answer(request)
            if answer is None:  # ended while it waited, by the system or a person: once more
                answer = self._answer(request)
        if answer is None:
            raise LimitExceededError(
                "the chat template must be rendered by a process that keeps running",
                got="the process was ended twice",
                remedy="Is the machine short of memory?",
            )
        return str(self._value(answer))

    def close(self) -> None:
        """End the process; what is being rendered fails. Idempotent."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()  # without the lock, which a thread that waits for the process holds
        with self._lock:
            self._end()

    def _answer(self, request: bytes) -> dict[str, Any] | None:
        self._require_open()
        if self._process is None or self._process.poll() is not None:
            self._value(self._start())
        return self._exchange(request)

    def _require_open(self) -> None:
        if self._closed:
            raise ModelError("the chat template was closed", remedy="Make another one.")

    def _start(self) -> dict[str, Any]:
        """Start the process; return the answer to the first request."""
        self._end()
        # -P: the folder of the program is not a place of modules
        line = [sys.executable, "-P", str(_PROGRAM)]
        self._process = subprocess.Popen(  # noqa: S603  # this interpreter and a file of this package
            line, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
        )
        self._stop = weakref.finalize(self, _end, self._process)
        self._require_open()  # close() found no process, or ends this one
        answer = self._exchange(self._first)
        if answer is None:
            self._require_open()
            raise ModelError("the program that renders chat templates must start", remedy="See its output.")
        return answer

    def _exchange(self, request: bytes) -> dict[str, Any] | None:
        """Return the answer to a request, or None if the process ended, other than by a bound of time."""
        process = self._process
        assert process is not None  # noqa: S101  # started by the callers
        try:
            data = exchange(process, request, self._limits.wall_seconds)
        except TimeoutError:
            self._end()
            return {"error": "wall"}
        if data:
            return dict(json.loads(data))
        self._end()
        return {"error": "time"} if process.returncode == -signal.SIGPROF else None

    def _value(self, answer: dict[str, Any]) -> Any:
        if "value" in answer:
            return answer["value"]
        limits, reason = self._limits, answer.get("reason")
        match answer["error"]:
            case "syntax":
                raise InvalidInputError("the chat template must be a Jinja template", got=reason)
            case "refused":
                raise InvalidInputError(
                    "messages must be of the form that the model's chat template takes", got=reason
                )
            case "time":
                condition = f"be rendered in {limits.cpu_seconds:g} s of CPU time"
            case "wall":
                raise LimitExceededError(
                    f"the chat template must be rendered in {limits.wall_seconds:g} s",
                    got="no answer of the process that renders it, which was ended",
                    remedy="Was the process stopped, or is the machine overloaded?",
                )
            case "memory":
                condition = f"be rendered in {limits.memory_bytes >> 20} MiB"
            case "length":
                condition = f"have at most {limits.max_characters} characters"
            case _:
                raise InvalidInputError(
                    "messages must be of the form that the model's chat template takes",
                    got=f"an error in the template: {reason}",
                )
        raise LimitExceededError(
            f"the prompt must {condition}", remedy="Shorten the messages, or use another chat template."
        )

    def _end(self) -> None:
        if self._stop is not None:
            self._stop.detach()
        if self._process is not None:
            _end(self._process)
            self._process = None


def _encoded(message: Mapping[str, Any]) -> bytes:
    return framed(json.dumps(message).encode())


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and close its pipes. Idempotent."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_SECONDS)

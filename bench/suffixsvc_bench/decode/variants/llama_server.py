"""llama-server in its speculative modes, as whole variants; each mode is a server process."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import ServiceUnavailableError
from suffixsvc.runtime.child_process import ChildProcesses
from suffixsvc_bench.decode.workload.jobs import AnsweredJob, Job
from suffixsvc_bench.decode.workload.outcome import Outcome

__all__ = ["MODES", "ServerVariant", "start_servers"]

#: mode -> additional options of the server
MODES: Final[Mapping[str, Sequence[str]]] = {
    "plain": (),
    "ngram-mod": ("--spec-type", "ngram-mod"),
    "ngram-map-k": (
        *("--spec-type", "ngram-map-k"),
        *("--spec-ngram-map-k-size-n", "4", "--spec-ngram-map-k-size-m", "12"),
    ),
    "ngram-cache": ("--spec-type", "ngram-cache"),
    "draft 3": ("--spec-type", "draft-simple", "--spec-draft-n-max", "3"),
    "draft 8": ("--spec-type", "draft-simple", "--spec-draft-n-max", "8"),
}
_START_SECONDS: Final = 180.0
_ANSWER_SECONDS: Final = 600.0


class PromptFiles:
    """KV caches of prompts, computed by one server and read by the others: llama-server's saved slots.

    Args:
        folder: slot folder of every server that shares these files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names: dict[tuple[int, ...], str] = {}

    def name(self, prompt_ids: Sequence[int]) -> str | None:
        """Name of the file with the prompt; None if there is none."""
        return self._names.get(tuple(prompt_ids))

    def add(self, prompt_ids: Sequence[int]) -> str:
        """Name of the file to save the prompt to."""
        return self._names.setdefault(tuple(prompt_ids), f"{len(self._names)}.slot")

    def clear(self) -> None:
        """Forget all prompts and remove their files."""
        for name in self._names.values():
            (self.folder / name).unlink(missing_ok=True)
        self._names.clear()


class ServerVariant:
    """One mode of llama-server, restarted for every round: only a new process forgets earlier requests.

    Args:
        command: the command line without the port.
        children: owner of the processes.
        prompts: shared by all servers of a run.

    Raises:
        ServiceUnavailableError: the server does not start.
    """

    def __init__(
        self, mode: str, command: Sequence[str], children: ChildProcesses, prompts: PromptFiles
    ) -> None:
        self.name = f"llama-server {mode}"
        self._command, self._children, self._prompts = command, children, prompts
        self._workload = ""
        self._start()

    def _start(self) -> None:
        self._port = _free_port()
        line = [*self._command, "--port", str(self._port), "--slot-save-path", f"{self._prompts.folder}/"]
        self._child = self._children.start_program(self.name, line, self.healthy, _START_SECONDS)
        self._used = False

    def begin(self, workload: str, warmup: Sequence[AnsweredJob], round_number: int) -> None:
        """Restart the server and send the warm-up texts as prompts, from which n-gram tables learn too.

        The prompts of those texts are not sent: reading them takes minutes and teaches nothing about answers.
        """
        if self._used:
            self._child.stop()
            self._start()
        if workload != self._workload:
            self._prompts.clear()
        self._workload = workload
        for token_ids in dict.fromkeys(answered.token_ids for answered in warmup):
            self._complete(token_ids, 1)

    def answer(self, job: Job) -> Outcome:
        """Answer a job, timed by the server. The first token is part of reading the prompt and is not
        counted.
        """
        self._read(job.prompt_ids)
        reply = self._complete(job.prompt_ids, job.max_tokens)
        timings = reply["timings"]
        return Outcome(
            max(0, int(timings["predicted_n"]) - 1),
            float(timings["predicted_ms"]) / 1e3,
            drafted=int(timings.get("draft_n", 0)),
            accepted=int(timings.get("draft_n_accepted", 0)),
            token_ids=tuple(reply.get("tokens", ())),
        )

    def _read(self, prompt_ids: Sequence[int]) -> None:
        """Load the prompt into the server's only slot, or compute and save it."""
        name = self._prompts.name(prompt_ids)
        action = "save" if name is None else "restore"
        if name is None:
            self._complete(prompt_ids, 0)
            name = self._prompts.add(prompt_ids)
        reply = self._request("POST", f"/slots/0?action={action}", {"filename": name}, _ANSWER_SECONDS)
        if "error" in reply:
            raise ServiceUnavailableError(f"{self.name} cannot {action} a slot", got=str(reply)[:200])

    def healthy(self) -> bool:
        """True if the server answers its health check."""
        try:
            return self._request("GET", "/health", None, 2.0).get("status") == "ok"
        except (OSError, ValueError, http.client.HTTPException):
            return False

    def _complete(self, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
        self._used = True
        body = {
            "prompt": list(prompt),
            "n_predict": tokens,
            "temperature": 0.0,
            "cache_prompt": True,
            "return_tokens": True,
        }
        reply = self._request("POST", "/completion", body, _ANSWER_SECONDS)
        if "timings" not in reply:
            raise ServiceUnavailableError(f"{self.name} failed", expected="timings", got=str(reply)[:200])
        return reply

    def _request(self, method: str, path: str, body: Any, seconds: float) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=seconds)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            reply: dict[str, Any] = json.loads(connection.getresponse().read())
            return reply
        finally:
            connection.close()


def start_servers(
    folder: Path,
    modes: Sequence[str],
    model: Path,
    draft: Path | None,
    threads: int,
    context: int,
    children: ChildProcesses,
    notify: Callable[[str], None] = lambda what: None,
) -> list[ServerVariant]:
    """Start a server for each mode; modes with a draft model are skipped without ``draft``.

    Args:
        folder: folder of the llama-server program.
        modes: keys of :data:`MODES`.
        children: owner of the processes.
        notify: called with what is being started.

    Raises:
        ServiceUnavailableError: a server does not start.
    """
    binary = folder / "llama-server"
    slots = children.folder / "slots"
    slots.mkdir(exist_ok=True)
    prompts = PromptFiles(slots)
    servers: list[ServerVariant] = []
    for mode in modes:
        if mode.startswith("draft") and draft is None:
            continue
        notify(f"starting llama-server, {mode}")
        command = [str(binary), "-m", str(model), "--host", "127.0.0.1"]
        command += ["-t", str(threads), "-tb", str(threads), "-c", str(context), "-np", "1", *MODES[mode]]
        if mode.startswith("draft"):
            command += ["-md", str(draft), "-td", str(threads)]
        servers.append(ServerVariant(mode, command, children, prompts))
    return servers


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

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
from suffixsvc_bench.speculation.model_fixture import FixtureOptions
from suffixsvc_bench.speculation.paired import Outcome

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


class ServerVariant:
    """One mode of llama-server, restarted for every round: only a new process forgets earlier requests.

    Args:
        command: the command line without the port.
        children: owner of the processes.
        slots: folder of the KV caches of prompts, computed by one server and read by the others.
        saved: names of the files there, by prompt; shared by all servers of a run.

    Raises:
        ServiceUnavailableError: the server does not start.
    """

    def __init__(
        self,
        mode: str,
        command: Sequence[str],
        children: ChildProcesses,
        slots: Path,
        saved: dict[tuple[int, ...], str],
    ) -> None:
        self.name = f"llama-server {mode}"
        self._command = [*command, "--slot-save-path", f"{slots}/"]
        self._children, self._slots, self._saved = children, slots, saved
        self._workload = ""
        self._start()

    def _start(self) -> None:
        self._port = free_port()
        line = [*self._command, "--port", str(self._port)]
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
            for name in self._saved.values():
                (self._slots / name).unlink(missing_ok=True)
            self._saved.clear()
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
        prompt = tuple(prompt_ids)
        action = "restore" if prompt in self._saved else "save"
        if action == "save":
            self._complete(prompt, 0)
        name = self._saved.setdefault(prompt, f"{len(self._saved)}.slot")
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
    options: FixtureOptions,
    children: ChildProcesses,
    notify: Callable[[str], None],
) -> list[ServerVariant]:
    """Start a server for each mode; modes with a draft model are skipped without one.

    Args:
        folder: folder of the llama-server program.
        modes: keys of :data:`MODES`.
        options: models, threads and context.
        children: owner of the processes.
        notify: called with what is being started.

    Raises:
        ServiceUnavailableError: a server does not start.
    """
    slots = children.folder / "slots"
    slots.mkdir(exist_ok=True)
    saved: dict[tuple[int, ...], str] = {}
    threads = str(options.threads)
    servers: list[ServerVariant] = []
    for mode in modes:
        drafting = mode.startswith("draft")
        if drafting and options.draft is None:
            continue
        notify(f"starting llama-server, {mode}")
        command = [str(folder / "llama-server"), "-m", str(options.target), "--host", "127.0.0.1"]
        command += ["-t", threads, "-tb", threads, "-c", str(options.context), "-np", "1", *MODES[mode]]
        command += ["-md", str(options.draft), "-td", threads] if drafting else []
        command += options.llama_arguments(drafting=drafting)
        servers.append(ServerVariant(mode, command, children, slots, saved))
    return servers


def free_port() -> int:
    """Return a free port of the loopback address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""Servers of `bench http`, as processes on free ports of the loopback address."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from suffixsvc.runtime.child_process import ChildProcess, ChildProcesses
from suffixsvc_bench.decode.variants.llama_server import MODES, free_port
from suffixsvc_bench.decode.workload.jobs import Job
from suffixsvc_bench.serving.servers.client import HttpClient, Reply
from suffixsvc_bench.serving.servers.subject import Messages
from suffixsvc_bench.speculation.model_fixture import FixtureOptions

DRAFTS: Final = "suffixsvc"
NO_DRAFTS: Final = "suffixsvc, no drafts"
DRAFT_MODEL: Final = "suffixsvc, draft model"
LLAMA: Final = "llama-server"
PLAIN_MODE: Final = "plain"
LLAMA_PLAIN: Final = f"{LLAMA} {PLAIN_MODE}"
#: name of the model in the API of this project's server
_MODEL: Final = "bench"
_START_SECONDS: Final = 600.0
_GREEDY: Final = {"model": _MODEL, "temperature": 0}


class ServerProcess:
    """A server, restarted for every part: only a new process has forgotten earlier requests.

    Attributes:
        name, learns, optional: see :class:`~suffixsvc_bench.serving.servers.subject.Subject`.

    Args:
        extra: further fields of every request.
    """

    def __init__(
        self,
        name: str,
        children: ChildProcesses,
        *,
        learns: bool,
        optional: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, self.learns, self.optional = name, learns, optional
        self._children, self._extra = children, dict(extra or {})
        self._child: ChildProcess | None = None
        self._client = HttpClient(name, "")

    @property
    def pid(self) -> int | None:
        """Id of the process; None if it is not running."""
        return self._child.pid if self._child is not None and self._child.running else None

    def restart(self) -> None:
        """Start a new process.

        Raises:
            ServiceUnavailableError: it does not start.
        """
        self.stop()
        self._child, address = self._start()
        self._client = HttpClient(self.name, address)

    def _start(self) -> tuple[ChildProcess, str]:
        """Return the process and its address."""
        raise NotImplementedError

    def stop(self) -> None:
        """End the process. Idempotent."""
        if self._child is not None:
            self._child.stop()
            self._child = None

    def answer(self, job: Job, max_tokens: int | None = None) -> Reply:
        """See :class:`~suffixsvc_bench.serving.servers.subject.Subject`."""
        body = {**_GREEDY, "prompt": list(job.prompt_ids), "max_tokens": max_tokens or job.max_tokens}
        return self._client.stream("/v1/completions", {**body, **self._extra})

    def chat(self, messages: Messages, max_tokens: int, more: Mapping[str, Any] | None = None) -> Reply:
        """See :class:`~suffixsvc_bench.serving.servers.subject.ChatSubject`."""
        body = {**_GREEDY, "messages": [dict(each) for each in messages], "max_tokens": max_tokens}
        return self._client.stream("/v1/chat/completions", {**body, **self._extra, **(more or {})})


class OpenAIProcess(ServerProcess):
    """``suffixsvc openai``, with its outputs in memory.

    Args:
        options: model, threads and context of a lane.
        parallel: lanes.
        name: :data:`DRAFTS`, :data:`NO_DRAFTS`, whose requests are answered without drafts, or
            :data:`DRAFT_MODEL`, which also has the draft model of the options.
    """

    def __init__(self, options: FixtureOptions, parallel: int, children: ChildProcesses, name: str) -> None:
        drafts = name != NO_DRAFTS
        extra = None if drafts else {"suffixsvc": {"speculation": False}}
        super().__init__(name, children, learns=drafts, extra=extra)
        self._ready = children.ready_file(self.name)
        self._command = ["openai", str(options.target.absolute()), "--listen", "127.0.0.1:0"]
        self._command += ["--model-name", _MODEL, "--parallel", str(parallel)]
        self._command += ["--context", str(options.context), "--threads", str(options.threads)]
        self._command += ["--ready-file", str(self._ready), "--kv-type", options.kv_type]
        self._command += options.offload.arguments()
        if name == DRAFT_MODEL and options.draft is not None:
            self._command += ["--draft", str(options.draft.absolute())]

    def _start(self) -> tuple[ChildProcess, str]:
        self._ready.unlink(missing_ok=True)
        child = self._children.start(self.name, self._command, self._ready.exists, _START_SECONDS)
        return child, json.loads(self._ready.read_text())["addresses"][0]


class LlamaServer(ServerProcess):
    """llama-server in one of its modes.

    Args:
        folder: folder of the program.
        mode: key of :data:`MODES`.
        options: models, threads and context of a lane.
        parallel: lanes.
    """

    def __init__(
        self, folder: Path, mode: str, options: FixtureOptions, parallel: int, children: ChildProcesses
    ) -> None:
        special = mode != PLAIN_MODE
        super().__init__(f"{LLAMA} {mode}", children, learns=special, optional=special)
        drafting = mode.startswith("draft")
        threads = str(options.threads)
        self._command = [str(folder / LLAMA), "-m", str(options.target), "--host", "127.0.0.1"]
        self._command += ["-t", threads, "-tb", threads, "-np", str(parallel)]
        self._command += ["-c", str(options.context * parallel), *MODES[mode]]
        self._command += ["-md", str(options.draft), "-td", threads] if drafting else []
        self._command += options.llama_arguments(drafting=drafting)
        if not options.offload.gpu_layers:  # its default is as many as fit
            self._command += ["-ngl", "0", *(["-ngld", "0"] if drafting else [])]

    def _start(self) -> tuple[ChildProcess, str]:
        address = f"127.0.0.1:{free_port()}"
        line = [*self._command, "--port", address.rpartition(":")[2]]
        ready = HttpClient(self.name, address).healthy
        return self._children.start_program(self.name, line, ready, _START_SECONDS), address


def llama_servers(
    folder: Path, modes: Sequence[str], options: FixtureOptions, parallel: int, children: ChildProcesses
) -> list[LlamaServer]:
    """llama-server in these modes, "plain" first; modes with a draft model are left out without one."""
    kept = [mode for mode in modes if options.draft is not None or not mode.startswith("draft")]
    ordered = dict.fromkeys([PLAIN_MODE, *kept])
    return [LlamaServer(folder, mode, options, parallel, children) for mode in ordered]

"""Arctic Inference's suffix decoding (vLLM's ``method="suffix"``), where it is installed.

It runs in a process of its own, in whatever environment has it: ``make peers`` builds one in .venv-peers.
Lines of JSON go back and forth (see :mod:`suffixsvc_bench.methods.arctic_worker`), and its microseconds are
measured on its side of the pipe.

Eight configurations: tree depth 24 or 64, length factor 1 or 4, chain or tree; the first is vLLM's default.
"Best in hindsight" is the best of them, chosen per trace and cost after the fact: of all eight, and of the
five that earlier comparisons looked at.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from suffixsvc.errors import SuffixError
from suffixsvc.types import Draft, DraftSource, TokenArray
from suffixsvc_bench.methods.base import Method, MethodSpec, Settings

__all__ = ["DEFAULT", "FAMILY", "Arctic", "PeerFailedError", "find_python", "specs"]

FAMILY: Final = "arctic"
#: (depth, factor, tree) of every configuration, vLLM's default first
CONFIGURATIONS: Final = tuple((d, f, tree) for tree in (False, True) for d in (24, 64) for f in (1, 4))
#: key of vLLM's default
DEFAULT: Final = "arctic-24-1-chain"
#: those of the smaller family
FIVE: Final = ((24, 1, False), (24, 4, False), (64, 4, False), (24, 1, True), (64, 4, True))
_WORKER: Final = Path(__file__).with_name("arctic_worker.py")
#: where make peers builds, beside the sources
_BUILT: Final = Path(__file__).resolve().parents[3] / ".venv-peers" / "bin" / "python"
#: names another Python that has the package
_VARIABLE: Final = "SUFFIXSVC_PEERS_PYTHON"


class PeerFailedError(SuffixError):
    """A peer's process ended or said something that is not an answer."""


def find_python() -> str | None:
    """The Python that can import the package: named by the environment, built by make peers, or this one."""
    named = os.environ.get(_VARIABLE)
    if named:
        return named
    if _BUILT.is_file():
        return str(_BUILT)
    return sys.executable if importlib.util.find_spec("arctic_inference") is not None else None


class Arctic(Method):
    """One cache of the package, unlimited, shared by all calls; every call is a request.

    Raises:
        PeerFailedError: the process could not be started or broke off.
    """

    def __init__(self, settings: Settings, python: str, *, depth: int, factor: float, tree: bool) -> None:
        # what it says goes to a file: a pipe nobody reads would fill up and stop it
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - see close
        self._seconds = 0.0
        try:
            self._process = subprocess.Popen(
                [python, str(_WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
            )
        except OSError as error:
            self._log.close()
            raise PeerFailedError(f"cannot run {python}", got=str(error), remedy=_REMEDY) from None
        setup = {"depth": depth, "k": settings.max_draft_tokens, "factor": factor, "tree": tree}
        try:
            self._ask({"open": setup})
        except BaseException:
            self.close()
            raise

    def begin(self, prompt: TokenArray, agent: str) -> None:
        self._tell({"begin": prompt.tolist()})

    def draft(self) -> Draft:
        answer = self._ask({"draft": True})
        self._seconds = float(answer["seconds"])
        tokens = answer["token_ids"]
        if not tokens:
            return Draft.empty()
        n = len(tokens)
        parents = np.array(answer["parents"], np.int32)
        # its figures are those of the path from the root; a Draft has them given the parent
        whole = np.array([*answer["probs"], 1.0])
        return Draft(
            np.array(tokens, np.int32),
            parents,
            (whole[:-1] / whole[parents]).astype(np.float32),  # parent -1 is the 1.0 at the end
            np.full(n, int(DraftSource.NONE), np.uint8),  # it does not say which tree a draft came from
            np.zeros(n, np.int32),
        )

    def accept(self, token_ids: TokenArray, accepted: int) -> None:
        self._tell({"accept": token_ids.tolist()})

    def end(self) -> None:
        self._tell({"end": True})

    def memory_bytes(self) -> int:
        return int(self._ask({"memory": True})["bytes"])

    def own_seconds(self) -> float:
        return self._seconds

    def close(self) -> None:
        if self._log.closed:
            return
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):  # it broke off with unsent words
                pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _tell(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._failure("it ended") from None

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        self._tell(message)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._failure(f"it said {line.strip()[:80]!r}" if line else "it ended")
        return answer

    def _failure(self, what: str) -> PeerFailedError:
        self._log.seek(0)
        said = self._log.read()[-2000:].strip().splitlines()
        return PeerFailedError(
            f"Arctic's process failed: {what}", got=said[-1][:200] if said else None, remedy=_REMEDY
        )


_REMEDY: Final = "Build it again: rm -r .venv-peers; make peers. Or leave it out with --method."


def specs() -> tuple[MethodSpec, ...]:
    """Its configurations, none where it is not installed."""
    python = find_python()
    if python is None:
        return ()
    return tuple(_spec(python, *configuration) for configuration in CONFIGURATIONS)


def _spec(python: str, depth: int, factor: int, tree: bool) -> MethodSpec:
    default = (depth, factor, tree) == (24, 1, False)
    shape = "tree" if tree else "chain"
    return MethodSpec(
        f"arctic-{depth}-{factor}-{shape}",
        "Arctic, vLLM's default" if default else f"Arctic, depth {depth}, factor {factor}, {shape}",
        f"Arctic Inference's suffix trees: depth {depth}, at most {factor} x match tokens, a {shape}",
        depth,
        lambda settings: Arctic(settings, python, depth=depth, factor=factor, tree=tree),
        native=True,
        memory="its own estimate of the global tree",
        families=(FAMILY, f"{FAMILY}-5") if (depth, factor, tree) in FIVE else (FAMILY,),
        swept=default,
    )

"""Arctic Inference's suffix decoding (vLLM's ``method="suffix"``), where it is installed.

It runs in a separate process, in the environment that has it; ``make peers`` builds one in .venv-peers. The
processes exchange lines of JSON (see :mod:`suffixsvc_bench.methods.arctic_worker`); its times are measured in
its process.

Eight configurations: tree depth 24 or 64, length factor 1 or 4, chain or tree; the first is vLLM's default.
"Best in hindsight" is the best of them, chosen per trace and cost afterwards: of all eight, and of the five
that earlier comparisons used.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from suffixsvc.types import Draft, DraftSource, TokenArray
from suffixsvc_bench.methods.base import Method, MethodSpec, Settings
from suffixsvc_bench.methods.peer_process import PeerProcess

FAMILY: Final = "arctic"
#: (depth, factor, tree) of every configuration, vLLM's default first
CONFIGURATIONS: Final = tuple((d, f, tree) for tree in (False, True) for d in (24, 64) for f in (1, 4))
#: key of vLLM's default
DEFAULT: Final = "arctic-24-1-chain"
#: configurations of the smaller family
FIVE: Final = ((24, 1, False), (24, 4, False), (64, 4, False), (24, 1, True), (64, 4, True))
_WORKER: Final = Path(__file__).with_name("arctic_worker.py")
#: environment of make peers, beside the sources
_BUILT: Final = Path(__file__).resolve().parents[3] / ".venv-peers" / "bin" / "python"
#: environment variable with another Python that has the package
_VARIABLE: Final = "SUFFIXSVC_PEERS_PYTHON"


def find_python() -> str | None:
    """The Python that can import the package: from the environment variable, of make peers, or this one; else
    None.
    """
    named = os.environ.get(_VARIABLE)
    if named:
        return named
    if _BUILT.is_file():
        return str(_BUILT)
    return sys.executable if importlib.util.find_spec("arctic_inference") is not None else None


class Arctic(Method):
    """One unlimited cache of the package, shared by all calls; every call is a request.

    Attributes:
        peer: its process.

    Raises:
        PeerFailedError: the process did not start, or failed.
    """

    def __init__(self, settings: Settings, python: str, *, depth: int, factor: float, tree: bool) -> None:
        self._seconds = 0.0
        self.peer = PeerProcess(python, _WORKER)
        setup = {"depth": depth, "k": settings.max_draft_tokens, "factor": factor, "tree": tree}
        try:
            self.peer.request({"open": setup})
        except BaseException:
            self.close()
            raise

    def begin(self, prompt: TokenArray, agent: str) -> None:
        """See :class:`Method`."""
        self.peer.send({"begin": prompt.tolist()})

    def draft(self) -> Draft:
        """See :class:`Method`."""
        answer = self.peer.request({"draft": True})
        self._seconds = float(answer["seconds"])
        return draft_of(answer)

    def accept(self, token_ids: TokenArray, accepted: int) -> None:
        """See :class:`Method`."""
        self.peer.send({"accept": token_ids.tolist()})

    def end(self) -> None:
        """See :class:`Method`."""
        self.peer.send({"end": True})

    def memory_bytes(self) -> int:
        """See :class:`Method`."""
        return int(self.peer.request({"memory": True})["bytes"])

    def own_seconds(self) -> float:
        """See :class:`Method`."""
        return self._seconds

    def close(self) -> None:
        """See :class:`Method`."""
        self.peer.close()


def draft_of(answer: Mapping[str, Any]) -> Draft:
    """The draft of an answer of :meth:`Requests.draft`, whose probabilities are those of paths."""
    n = len(answer["token_ids"])
    if not n:
        return Draft.empty()
    parents = np.array(answer["parents"], np.int32)
    paths = np.array([*answer["probs"], 1.0])  # parent -1 is the 1.0 at the end
    given_parent = paths[:-1] / np.maximum(paths[parents], np.finfo(np.float32).tiny)
    return Draft(
        np.array(answer["token_ids"], np.int32),
        parents,
        np.minimum(given_parent, 1.0).astype(np.float32),
        np.full(n, int(DraftSource.NONE), np.uint8),  # the interface does not report the source
        np.zeros(n, np.int32),
    )


def specs() -> tuple[MethodSpec, ...]:
    """Its configurations; empty where it is not installed."""
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

"""llama.cpp's own programs of a folder, as ways to answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from suffixsvc.children import Children
from suffixsvc_bench.decode.llama_server import start_servers
from suffixsvc_bench.decode.programs import ProgramVariant
from suffixsvc_bench.decode.rig import Rig
from suffixsvc_bench.decode.variants import Whole

__all__ = ["open_peers"]

_PROGRAMS: Final = ("llama-lookup", "llama-speculative-simple", "llama-speculative")


def open_peers(
    folder: Path,
    modes: Sequence[str],
    rig: Rig,
    logs: Path,
    stack: ExitStack,
    told: Callable[[str], None],
    *,
    programs: bool = False,
) -> list[Whole]:
    """llama-server in each of ``modes``; with ``programs`` also those that answer one prompt and end.

    Raises:
        InvalidInputError: no llama-server there, no such mode.
        ServiceUnavailableError: a server does not come up.
    """
    options = rig.options
    peers: list[Whole] = [
        *start_servers(
            folder,
            modes,
            options.target,
            options.draft,
            options.threads,
            options.context,
            stack.enter_context(Children(logs)),
            told,
        )
    ]
    for name in _PROGRAMS if programs else ():
        needs_draft = "speculative" in name
        if (folder / name).is_file() and (options.draft or not needs_draft):
            peers.append(
                ProgramVariant(folder / name, rig.model, options.draft, options.threads, options.context)
            )
    return peers

"""llama.cpp's own programs of a folder, as ways to answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from suffixsvc.children import Children
from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.decode.llama_server import MODES, start_servers
from suffixsvc_bench.decode.programs import ProgramVariant
from suffixsvc_bench.decode.rig import Rig
from suffixsvc_bench.decode.variants import Whole

__all__ = ["check_peers", "open_peers"]

_SERVER: Final = "llama-server"
_PROGRAMS: Final = ("llama-lookup", "llama-speculative-simple", "llama-speculative")


def check_peers(folder: Path, modes: Sequence[str], *, programs: bool, draft: bool) -> None:
    """Whether :func:`open_peers` will find what it needs.

    Raises:
        InvalidInputError: no such mode, or a program is missing.
    """
    for mode in modes:
        if mode not in MODES:
            raise InvalidInputError("no such mode of llama-server", expected=", ".join(MODES), got=repr(mode))
    wanted = [_SERVER, *_wanted(programs=programs, draft=draft)]
    missing = [name for name in wanted if not (folder / name).is_file()]
    if missing:
        raise InvalidInputError(
            f"{folder} has not all of llama.cpp's programs",
            expected=", ".join(wanted),
            got=f"no {', '.join(missing)}",
            remedy="`tools/llama_tools.sh` builds them and says where.",
        )


def _wanted(*, programs: bool, draft: bool) -> list[str]:
    return [name for name in _PROGRAMS if programs and (draft or "speculative" not in name)]


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
    check_peers(folder, modes, programs=programs, draft=options.draft is not None)
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
    for name in _wanted(programs=programs, draft=options.draft is not None):
        program = ProgramVariant(folder / name, rig.model, options.draft, options.threads, options.context)
        peers.append(program)
    return peers

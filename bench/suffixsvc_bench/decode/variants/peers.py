"""llama.cpp's own programs as whole variants of `bench decode`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from suffixsvc.errors import InvalidInputError
from suffixsvc.runtime.child_process import ChildProcesses
from suffixsvc_bench.decode.variants.llama_server import MODES, start_servers
from suffixsvc_bench.decode.variants.programs import ProgramVariant
from suffixsvc_bench.decode.variants.variants import WholeVariant
from suffixsvc_bench.speculation.model_fixture import ModelFixture

_SERVER: Final = "llama-server"
_PROGRAMS: Final = ("llama-lookup", "llama-speculative-simple", "llama-speculative")


def check_peers(folder: Path, modes: Sequence[str], *, programs: bool, draft: bool) -> None:
    """Check that the modes are known and the programs exist.

    Raises:
        InvalidInputError: a mode is unknown, or a program is missing.
    """
    for mode in modes:
        if mode not in MODES:
            raise InvalidInputError(
                "--llama-mode must be a mode of llama-server", expected=", ".join(MODES), got=repr(mode)
            )
    wanted = [_SERVER, *_wanted(programs=programs, draft=draft)]
    missing = [name for name in wanted if not (folder / name).is_file()]
    if missing:
        raise InvalidInputError(
            f"{folder} must contain llama.cpp's programs",
            expected=", ".join(wanted),
            got=f"no {', '.join(missing)}",
            remedy="`tools/llama_tools.sh` builds them and prints their folder.",
        )


def _wanted(*, programs: bool, draft: bool) -> list[str]:
    return [name for name in _PROGRAMS if programs and (draft or "speculative" not in name)]


def open_peers(
    folder: Path,
    modes: Sequence[str],
    fixture: ModelFixture,
    logs: Path,
    stack: ExitStack,
    notify: Callable[[str], None],
    *,
    programs: bool = False,
) -> list[WholeVariant]:
    """Start llama-server in each of ``modes``; with ``programs``, add the one-shot programs.

    Raises:
        InvalidInputError: llama-server is missing, or a mode is unknown.
        ServiceUnavailableError: a server does not start.
    """
    options = fixture.options
    check_peers(folder, modes, programs=programs, draft=options.draft is not None)
    children = stack.enter_context(ChildProcesses(logs))
    names = _wanted(programs=programs, draft=options.draft is not None)
    return [
        *start_servers(folder, modes, options, children, notify),
        *(ProgramVariant(folder / name, fixture.model, options) for name in names),
    ]

"""``suffixsvc VERB``: one file a verb, loaded only when it is asked for.

``--help`` therefore starts in the time Python takes, and a verb whose optional dependency is
missing says so in one line while every other verb works. What a user can cause ends as one line on
stderr and exit code 2 (``--debug`` shows where it came from); anything else is a bug of ours and
keeps its traceback.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from suffixsvc.cli.wakeups import prefer_short_wakeups
from suffixsvc.errors import MissingExtraError, SuffixError

__all__ = ["VERBS", "Verb", "describe", "main"]

#: exit code of everything a user can put right
USAGE_ERROR: Final = 2
#: what a shell reports after Ctrl-C
INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True)
class Verb:
    """Where a verb's function (or typer app) lives, and its line in ``suffixsvc --help``."""

    module: str
    attribute: str
    help: str


VERBS: Final[dict[str, Verb]] = {
    "demo": Verb(
        "suffixsvc.cli.demo", "demo", "Watch agents on a real model get faster by remembering, step by step."
    ),
    "serve": Verb("suffixsvc.cli.serve", "serve", "Run the service: one shared, durable suffix cache."),
    "draft-worker": Verb(
        "suffixsvc.cli.draft_worker",
        "draft_worker",
        "Run a small model that drafts when memory cannot.",
    ),
    "generate": Verb(
        "suffixsvc.cli.generate",
        "generate",
        "Write text on a model with everything on, and show where each token came from.",
    ),
    "probe": Verb(
        "suffixsvc.cli.probe",
        "probe",
        "Measure what a model's steps cost here; say what speedup is possible.",
    ),
    "compat": Verb(
        "suffixsvc.cli.compat",
        "compat",
        "Say whether a model can draft for another, and find those that can.",
    ),
    "replay": Verb(
        "suffixsvc.cli.replay", "replay", "Measure on a recorded log what the cache would have drafted."
    ),
    "build": Verb(
        "suffixsvc.cli.build",
        "build",
        "Build caches from logs: lookup caches for llama.cpp, data folders for the service.",
    ),
    "export": Verb(
        "suffixsvc.cli.export", "export", "Write what a namespace keeps as lookup caches for llama.cpp."
    ),
    "bench": Verb("suffixsvc.cli.bench", "app", "Measure: replays of recorded logs, methods side by side."),
    "cache": Verb(
        "suffixsvc.cli.cache",
        "app",
        "Look at llama.cpp's lookup caches: inspect, verify, forecast, merge, diff.",
    ),
    "compact": Verb(
        "suffixsvc.cli.compact", "compact", "Seal and merge a data folder, so that it opens at once."
    ),
    "namespaces": Verb(
        "suffixsvc.cli.namespaces", "app", "List and delete the namespaces of a service or a folder."
    ),
    "models": Verb("suffixsvc.cli.models", "app", "List, download and locate the models used here."),
    "version": Verb("suffixsvc.cli.version", "version", "Print the version."),
}

#: top-level module -> the extra of this distribution that brings it
_EXTRA_OF: Final[dict[str, str]] = {
    "grpc_health": "server",
    "grpc_reflection": "server",
    "prometheus_client": "server",
    "llama_cpp": "llama",
    "tokenizers": "text",
    "orjson": "caches",
    "zstandard": "caches",
    "pyarrow": "caches",
    "pathspec": "caches",
}


class _LazyCommand(TyperCommand):
    """Stands for a verb in the overview; becomes the real command once it is called."""

    def __init__(self, name: str, verb: Verb) -> None:
        super().__init__(name=name, callback=None, help=verb.help, short_help=verb.help)
        self._verb = verb

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        return _load(str(self.name), self._verb).make_context(info_name, args, parent=parent, **extra)


class _LazyGroup(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        verb = VERBS.get(cmd_name)
        return None if verb is None else _LazyCommand(cmd_name, verb)


def _load(name: str, verb: Verb) -> Any:
    from suffixsvc.cli.logs import log_to_stderr  # structlog: not for --help

    prefer_short_wakeups()
    log_to_stderr()
    function: Any = getattr(importlib.import_module(verb.module), verb.attribute)
    if isinstance(function, typer.Typer):
        return get_command(function)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name)(function)
    return get_command(app)


_app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help=(
        "suffixsvc remembers what language models wrote and drafts it when they start to write it again; "
        "the model checks every draft, so its answers stay its own and only come sooner."
    ),
    epilog="Start with: suffixsvc demo. Every verb explains itself: suffixsvc VERB --help.",
)


def _version(asked: bool) -> None:
    if asked:
        from suffixsvc.cli.version import version  # not for --help

        version()
        raise typer.Exit


@_app.callback()
def _root(
    debug: bool = typer.Option(
        False, "--debug", help="Show the traceback of errors. Also: SUFFIXSVC_DEBUG=1."
    ),
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version, as the verb does."
    ),
) -> None:
    # main() has taken --debug out of the arguments: it is declared here so that --help names it.
    del debug, version


def describe(error: BaseException) -> str:
    """An error as one line: what happened, what was expected, what came, what to do."""
    return " ".join(str(error).split()) or type(error).__name__


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    Args:
        argv: the arguments without the program's name; ``None`` takes ``sys.argv``.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    debug = os.environ.get("SUFFIXSVC_DEBUG", "") not in ("", "0")
    end = args.index("--") if "--" in args else len(args)
    if "--debug" in args[:end]:
        args.remove("--debug")
        debug = True
    run: Callable[..., Any] = get_command(_app)
    _open_stdout()
    try:
        return _flushed(_exit_code(lambda: run(args, prog_name="suffixsvc")))
    except BrokenPipeError:  # the reader has read enough
        _discard_stdout()
        return 1
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if debug or module not in _EXTRA_OF:
            raise
        return _fail(args, MissingExtraError(_EXTRA_OF[module], module))
    except SuffixError as error:
        if debug:
            raise
        return _fail(args, error)
    except KeyboardInterrupt:
        if debug:
            raise
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


class _Stdout(io.FileIO):
    """Standard output. Its errors are not those of other files: what it does not take is lost."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:  # the reader has read enough
            raise
        except OSError as error:
            _discard_stdout()
            raise SuffixError(
                "standard output must be writable",
                got=error.strerror,
                remedy="Redirect it to a disk with space, or to a file that may grow.",
            ) from error


def _open_stdout() -> None:
    """Let standard output take every name of a file, as stderr does, and raise errors of its own."""
    if not isinstance(sys.stdout, io.TextIOWrapper):
        return
    if sys.stdout is not sys.__stdout__:  # a caller's own
        sys.stdout.reconfigure(errors="backslashreplace")
        return
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Stdout(sys.stdout.fileno(), "wb", closefd=False)),
        sys.stdout.encoding,
        "backslashreplace",
        line_buffering=sys.stdout.line_buffering,
        write_through=sys.stdout.write_through,
    )


def _flushed(code: int) -> int:
    """The exit code, once standard output took all of the text."""
    if sys.stdout is not None:  # closed by the shell
        sys.stdout.flush()
    return code


def _discard_stdout() -> None:
    """Nothing that is still written to standard output can fail, at the interpreter's end either."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _exit_code(run: Callable[[], Any]) -> int:
    try:
        run()
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
            return 1
        if stop.code == INTERRUPTED:  # typer makes this of a KeyboardInterrupt, and says nothing
            raise KeyboardInterrupt from stop
        return stop.code or 0
    return 0


def _fail(args: Sequence[str], error: BaseException) -> int:
    verb = next((arg for arg in args if arg in VERBS), "")
    print(f"suffixsvc{' ' if verb else ''}{verb}: {describe(error)}", file=sys.stderr)
    return USAGE_ERROR

"""Command line ``suffixsvc VERB``: one file per verb, loaded only when it is called.

``--help`` is therefore fast, and a verb with a missing optional dependency reports that in one line while
every other verb works. An error that the user can correct is one line on stderr and exit code 2 (``--debug``
shows the traceback); any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from suffixsvc.errors import MissingExtraError, SuffixError
from suffixsvc.runtime.grpc_poller import use_low_latency_poller

__all__ = ["VERBS", "Verb", "describe", "main"]

#: exit code of errors that the user can correct
USAGE_ERROR: Final = 2
#: exit code of a shell after Ctrl-C
INTERRUPTED: Final = 130
#: objects between two garbage collections; with Python's 700 the imports of a verb caused 170 of them
_GC_THRESHOLD: Final = 10_000


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: the module with its typer ``app`` or function of its name, its line in ``suffixsvc --help``."""

    module: str
    help: str
    #: its options can be set in a file and in the environment, too (:mod:`suffixsvc_cli.base.configuration`)
    configurable: bool = False


VERBS: Final[dict[str, Verb]] = {
    "demo": Verb(".models.demo", "Run agents on a real model and show how stored outputs speed them up."),
    "serve": Verb(".server.serve", "Run the service: one shared, durable suffix cache.", configurable=True),
    "openai": Verb(
        ".server.openai", "Serve a model over an OpenAI-compatible HTTP API, with drafts.", configurable=True
    ),
    "draft-worker": Verb(
        ".server.draft_worker", "Run a draft model as a service for drivers.", configurable=True
    ),
    "generate": Verb(
        ".generate.command",
        "Generate text on a model with every drafting layer, and show the origin of each token.",
    ),
    "probe": Verb(
        ".models.probe", "Measure the cost of a model's steps on this machine and the possible speedup."
    ),
    "compat": Verb(
        ".models.compat", "Check whether a model can draft for another, and find models that can."
    ),
    "replay": Verb(".corpus.replay", "Measure hit rates of the cache on a recorded log."),
    "build": Verb(
        ".corpus.build", "Build caches from logs: lookup caches for llama.cpp, data folders for the service."
    ),
    "export": Verb(".corpus.export", "Export a namespace as lookup caches for llama.cpp."),
    "bench": Verb(".bench", "Benchmarks: replays of logs, micro-benchmarks, real models."),
    "cache": Verb(".cache", "Work with llama.cpp's lookup caches: inspect, verify, forecast, merge, diff."),
    "compact": Verb(".server.compact", "Seal and merge the segments of a data folder."),
    "backup": Verb(".server.backup", "Back up a running service or a data folder."),
    "restore": Verb(".server.restore", "Restore a backup as a new data folder."),
    "check": Verb(".server.check", "Verify every page, record and segment of a data folder."),
    "repair": Verb(".server.repair", "Rebuild a damaged data folder from what can be read of its log."),
    "migrate": Verb(".server.migrate", "Migrate a data folder of an earlier release, after a backup."),
    "forget": Verb(".server.forget", "Delete outputs by id, session, label, principal, namespace or age."),
    "namespaces": Verb(".server.namespaces", "List and delete namespaces of a service or a data folder."),
    "config": Verb(".server.config", "Show the options of a server, and where each one was set."),
    "health": Verb(".server.health", "Ask a service or an OpenAI-compatible server whether it serves."),
    "stats": Verb(".server.stats", "Show contents and counters of a service or a data folder."),
    "token": Verb(".server.token", "Create, revoke and list tokens of principals."),
    "policy": Verb(".server.policy", "Check policy files and explain what they permit."),
    "top": Verb(".server.top", "Watch a running service: rates, namespaces, followers, background tasks."),
    "models": Verb(".models.models", "List, download and locate models."),
    "version": Verb(".base.version", "Print the version."),
}

#: top-level module -> the extra of this distribution that installs it
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
    "fastapi": "openai",
    "uvicorn": "openai",
    "jinja2": "openai",
    "jsonschema": "openai",
}


class _LazyCommand(TyperCommand):
    """Placeholder of a verb in the overview; it loads the real command when called."""

    def __init__(self, name: str, verb: Verb) -> None:
        super().__init__(name=name, callback=None, help=verb.help, short_help=verb.help)
        self._verb = verb

    def load(self) -> Any:
        """The real command."""
        return _load(str(self.name), self._verb)

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        return self.load().make_context(info_name, args, parent=parent, **extra)


class _LazyGroup(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        verb = VERBS.get(cmd_name)
        return None if verb is None else _LazyCommand(cmd_name, verb)


def _load(name: str, verb: Verb) -> Any:
    # structlog (not for --help) imports rich, for tracebacks that no verb writes
    with _as_if_absent("rich"):
        from suffixsvc_cli.base.logs import log_to_stderr

    use_low_latency_poller()
    # not a line of gRPC's own, in its format, for every peer that speaks no TLS
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    log_to_stderr()
    module = importlib.import_module(verb.module, __name__)
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        command = getattr(module, name.replace("-", "_"))
        kind = None
        if verb.configurable:
            from suffixsvc_cli.base.configuration import configurable

            kind = configurable(command)
        app.command(name, cls=kind)(command)
    return _reflow(get_command(app))


@contextlib.contextmanager
def _as_if_absent(module: str) -> Iterator[None]:
    """Let imports of a module fail for the block, unless it is loaded already."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment] # what the import system takes for absent
    try:
        yield
    finally:
        del sys.modules[module]


def _reflow(command: Any) -> Any:
    """Join the lines of each paragraph of the help texts, which typer prints as they are."""
    for each in (command, *getattr(command, "commands", {}).values()):
        paragraphs = inspect.cleandoc(each.help or "").split("\n\n")
        each.help = "\n\n".join(p if p.startswith(" ") else " ".join(p.split()) for p in paragraphs)
    return command


_app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help=(
        "Speculative decoding from memory: suffixsvc stores the outputs of language models and drafts from "
        "them; the model verifies every draft, so its answers are unchanged."
    ),
    epilog="Start with: suffixsvc demo. Help on a verb: suffixsvc VERB --help.",
)


def _version(requested: bool) -> None:
    if requested:
        from suffixsvc_cli.base.version import version  # not for --help

        version()
        raise typer.Exit


@_app.callback()
def _root(
    debug: bool = typer.Option(
        False, "--debug", help="Show the traceback of errors. Also: SUFFIXSVC_DEBUG=1."
    ),
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print versions, as the verb `version`."
    ),
) -> None:
    # main() removes --debug from the arguments; it is declared here for --help.
    del debug, version


def describe(error: BaseException) -> str:
    """An error as one line: message, expected, got, remedy."""
    return " ".join(str(error).split()) or type(error).__name__


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code.

    Args:
        argv: the arguments without the program's name; ``None``: ``sys.argv``.
    """
    if argv is None:  # the process is the command's
        gc.set_threshold(_GC_THRESHOLD)
    args = list(sys.argv[1:] if argv is None else argv)
    debug = os.environ.get("SUFFIXSVC_DEBUG", "") not in ("", "0")
    end = args.index("--") if "--" in args else len(args)
    if "--debug" in args[:end]:
        args.remove("--debug")
        debug = True
    run: Callable[..., Any] = get_command(_app)
    _open_stdout()
    try:
        return _exit_code(lambda: run(args, prog_name="suffixsvc"))
    except BrokenPipeError:  # the reader closed the pipe
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
    """Standard output whose write errors are reported as errors of the user's redirection."""

    def write(self, data: Any, /) -> int:
        """Write; an OSError other than a closed pipe becomes a SuffixError."""
        try:
            return super().write(data)
        except BrokenPipeError:  # the reader closed the pipe
            raise
        except OSError as error:
            _discard_stdout()
            raise SuffixError(
                "standard output must be writable",
                got=error.strerror,
                remedy="Redirect it to a file on a disk with free space.",
            ) from error


def _open_stdout() -> None:
    """Replace standard output: unencodable characters are escaped, as on stderr, and write errors are
    reported.
    """
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


def _discard_stdout() -> None:
    """Redirect standard output to /dev/null, so that later writes cannot fail, also at interpreter exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _exit_code(run: Callable[[], Any]) -> int:
    """The exit code of a run, after standard output is flushed."""
    code: Any = 0
    try:
        run()
    except SystemExit as stop:
        code = stop.code or 0
    if code == INTERRUPTED:  # typer's exit code for a KeyboardInterrupt
        raise KeyboardInterrupt
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    if sys.stdout is not None:  # closed by the shell
        sys.stdout.flush()
    return int(code)


def _fail(args: Sequence[str], error: BaseException) -> int:
    verb = next((arg for arg in args if arg in VERBS), "")
    print(f"suffixsvc{' ' if verb else ''}{verb}: {describe(error)}", file=sys.stderr)
    return USAGE_ERROR

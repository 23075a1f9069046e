"""Program that renders chat templates, in a process of its own: a template may loop forever, or build a
string that fills the memory, inside of C code that no exception interrupts.

Templates come with model files, so they are data of others. Bounds, per request:

- CPU time: a timer of the kernel ends the process (SIGPROF). A template cannot wait for anything, and CPU
  time does not depend on the load of the machine.
- Address space of the process (RLIMIT_AS; macOS does not enforce it): a MemoryError, which is answered.
- Length of the output, counted while it is written.

Environment and functions are those of Hugging Face's transformers (``apply_chat_template``).

A message is a length (8 bytes, little endian) and JSON. The first request has the templates, by name, and the
bounds; its answer has the variables that each template reads. The following requests name a template and the
variables; their answers have ``text``, or ``error`` (a kind of :data:`ERRORS`) and ``reason``.

The file is run by its path, and imports nothing of this package.
"""

from __future__ import annotations

import datetime
import json
import resource
import signal
import sys
from typing import IO, Any, Final

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

#: kinds of failures: the template is malformed, refused the messages, failed on them, exceeded a bound
ERRORS: Final = ("syntax", "refused", "failed", "length", "memory")
_MAX_REASON: Final = 300


class RefusedError(Exception):
    """The template called raise_exception."""


class LengthError(Exception):
    """The output is longer than the bound."""


class GenerationTag(jinja2.ext.Extension):
    """``{% generation %}`` marks what the model writes, for training; the contents are rendered."""

    tags = {"generation"}  # noqa: RUF012  # as the base class declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Return the statements inside of the tag."""
        parser.stream.skip(1)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter ``tojson``: without the escapes of Jinja's own, which are for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def refuse(message: object) -> None:
    """The function ``raise_exception``."""
    raise RefusedError(str(message))


def strftime_now(form: str) -> str:
    """The function ``strftime_now``: the local time in a format of strftime."""
    return datetime.datetime.now().strftime(form)


def environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """Return the environment of chat templates."""
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"]
    )
    env.filters["tojson"] = to_json
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = strftime_now
    return env


class Renderer:
    """The compiled templates.

    Args:
        first: the first request.
    """

    def __init__(self, first: dict[str, Any]) -> None:
        self._max_characters: int = first["max_characters"]
        self._env = environment()
        self._templates: dict[str, jinja2.Template] = {}
        self.variables: dict[str, list[str]] = {}
        for name, text in first["templates"].items():
            self.variables[name] = sorted(jinja2.meta.find_undeclared_variables(self._env.parse(text)))
            self._templates[name] = self._env.from_string(text)

    def render(self, request: dict[str, Any]) -> str:
        """Return the text of a request."""
        pieces, length = [], 0
        for piece in self._templates[request["template"]].generate(request["variables"]):
            length += len(piece)
            if length > self._max_characters:
                raise LengthError
            pieces.append(piece)
        return "".join(pieces)


def guarded(action: Any, *args: Any) -> dict[str, Any]:
    """Return the answer of an action, whatever it raises."""
    try:
        return {"value": action(*args)}
    except RefusedError as error:
        kind, reason = "refused", str(error)
    except LengthError:
        kind, reason = "length", ""
    except MemoryError:
        kind, reason = "memory", ""
    except jinja2.TemplateSyntaxError as error:
        kind, reason = "syntax", f"{error.message} in line {error.lineno}"
    except Exception as error:  # expressions of a template raise exceptions of all types
        kind, reason = "failed", f"{type(error).__name__}: {error}"
    return {"error": kind, "reason": reason[:_MAX_REASON]}


def receive(stream: IO[bytes]) -> dict[str, Any] | None:
    """Return the next message; None at the end."""
    size = int.from_bytes(stream.read(8), "little")
    data = stream.read(size) if size else b""
    return dict(json.loads(data)) if data else None


def send(stream: IO[bytes], message: dict[str, Any]) -> None:
    """Send a message."""
    data = json.dumps(message).encode()
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def main() -> None:
    """Answer requests until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes the input
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    first = receive(requests)
    if first is None:
        return
    seconds, room = first["cpu_seconds"], first["memory_bytes"]
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def bounded(action: Any, *args: Any) -> dict[str, Any]:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            return guarded(action, *args)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    made = bounded(Renderer, first)
    renderer = made.pop("value", None)
    send(answers, made if renderer is None else {"value": renderer.variables})
    while renderer is not None and (request := receive(requests)) is not None:
        send(answers, bounded(renderer.render, request))


if __name__ == "__main__":
    main()

"""The lines that begin to use the demo's model from an agent framework, ready for a shell."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Final

_DEFAULT: Final = "127.0.0.1:8000"
_QUESTION: Final = "A SQL query that lists all customers of Lisbon."


def server_line(model: Path, address: str = _DEFAULT) -> str:
    """Return the command that serves a model file; its answers are stored in ./memory."""
    command = [_program(), "openai", str(model), "--data", "memory"]
    return shlex.join([*command, *([] if address == _DEFAULT else ["--listen", address])])


def request_line(model: Path, address: str = _DEFAULT) -> str:
    """Return the command that asks the server a question."""
    messages = [{"role": "user", "content": _QUESTION}]
    # with the default temperature of 1 the second answer is another text, which memory cannot draft
    body = {"model": model.stem, "messages": messages, "max_tokens": 200, "temperature": 0}
    url = f"http://{address}/v1/chat/completions"
    return shlex.join(["curl", "-s", url, "-H", "Content-Type: application/json", "-d", json.dumps(body)])


def _program() -> str:
    """Return the path of ``suffixsvc`` beside this Python, relative where it is below the current folder."""
    program, here = Path(sys.executable).with_name("suffixsvc"), Path.cwd()
    return str(program.relative_to(here) if program.is_relative_to(here) else program)

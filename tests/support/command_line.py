"""The command line, run in this process: what a shell would see, without the start of an interpreter."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess

from suffixsvc_cli import main


def run_verb(*arguments: str | os.PathLike[str]) -> CompletedProcess[str]:
    """Run ``suffixsvc ARGUMENTS``; its exit code, standard output and standard error."""
    words = [os.fspath(each) for each in arguments]
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        code = main(words)
    out, err = (stream.buffer.getvalue().decode() for stream in streams)  # type: ignore[attr-defined]  # BytesIO
    return CompletedProcess(words, code, out, err)

"""``suffixsvc bench train``: reads logs, learns with a progress bar, writes files."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.replay.inputs import encoder_of, weights_of
from suffixsvc_bench.replay.logs import Call, find_logs
from suffixsvc_bench.replay.traces import Selection, load_traces
from suffixsvc_bench.training.options import TrainOptions
from suffixsvc_bench.training.train import learn_weights


def run_bench_train(options: TrainOptions) -> None:
    """See the verb's help.

    Raises:
        InvalidInputError: a log cannot be read, there are too few, or ``--out`` cannot be written.
    """
    out, leave_one_out = options.out, options.leave_one_out
    paths = find_logs(options.logs)
    if not paths or (leave_one_out and len(paths) < 2):
        raise InvalidInputError(f"logs must be at least {2 if leave_one_out else 1}", got=len(paths))
    _prepare(out, folder=leave_one_out)
    encode = encoder_of(options.tokenizer) if options.tokenizer else None
    selection = Selection(max_tokens=options.max_tokens)
    with Progress(console=Console(stderr=True)) as bar:
        reading = bar.add_task("reading", total=len(paths))
        calls_of: dict[str, Sequence[Call]] = {}
        for trace in load_traces(paths, [], encode, selection):
            calls_of[trace.name] = trace.calls
            bar.advance(reading)
        for name in sorted(calls_of) if leave_one_out else [""]:
            rest = {log: calls for log, calls in calls_of.items() if log != name}
            task = bar.add_task(
                f"learning without {name}" if name else "learning", total=sum(map(len, rest.values()))
            )
            weights = learn_weights(rest, seed=options.seed, progress=lambda _, t=task: bar.advance(t))  # type: ignore[misc] # mypy cannot infer lambdas with defaults
            file = weights_of(out, name) if name else out
            try:
                file.write_bytes(weights)
            except OSError as error:
                raise InvalidInputError(f"{file} must be writable", got=str(error)) from None
            print(f"{file}: {len(weights)} bytes")


def _prepare(out: Path, *, folder: bool) -> None:
    target_folder = out if folder else out.parent
    try:
        target_folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=target_folder).close()
        if not folder and out.is_dir():
            raise IsADirectoryError("it is a folder")
    except OSError as error:
        raise InvalidInputError("--out must be writable", got=str(error)) from None

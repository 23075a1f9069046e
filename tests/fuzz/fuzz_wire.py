"""Coverage-guided fuzzer of the wire's decoders, with atheris (https://github.com/google/atheris).

    python tests/fuzz/fuzz_wire.py [SCRATCH FOLDER] [libFuzzer options, e.g. -max_total_time=60 -seed=1]

`make fuzz-wire` installs atheris and runs it. tests/support/wire_target.py defines the targets and the
findings. The fuzzer starts from the inputs in wire_corpus.txt (hex, one per line). New inputs with more
coverage are stored in corpus/ of the scratch folder, and `--save` writes a minimal set of the same coverage
back to wire_corpus.txt.

Half of the mutations change bytes, as in libFuzzer; the other half change fields, so that the result is a
valid message and the checks after the parser are reached.
"""

from __future__ import annotations

import gc
import random
import shlex
import subprocess
import sys
from pathlib import Path
from types import FunctionType
from typing import Final

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from google.protobuf.message import DecodeError

from support.message_mutations import change
from support.wire_target import KINDS, Services, run_one, seeds

#: instrumented modules; atheris cannot instrument the imports of an editable install
COUNTED: Final = (
    "suffixsvc.wire",
    "suffixsvc.values",
    "suffixsvc.config",
    "suffixsvc.errors",
    "suffixsvc.service",
    "suffixsvc.index.session",
    "suffixsvc.index.session_calls",
    "support.wire_target",
)
CORPUS: Final = Path(__file__).with_name("wire_corpus.txt")


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """For libFuzzer: another input from this one, at most ``max_size`` bytes."""
    choice = random.Random(seed)
    if not data or choice.random() < 0.5:
        return bytes(atheris.Mutate(data, max_size))
    message = KINDS[data[0] % len(KINDS)][0]()
    try:
        message.MergeFromString(data[1:])
    except DecodeError:
        return bytes(atheris.Mutate(data, max_size))
    for _ in range(choice.choice((1, 1, 2, 4))):
        change(message, choice, lambda old: bytes(atheris.Mutate(old, len(old) + 16)))
    return (data[:1] + message.SerializeToString())[:max_size]


def _instrument() -> int:
    """Instrument the functions of the COUNTED modules; their number."""
    found = [
        function
        for function in gc.get_objects()
        if isinstance(function, FunctionType) and (function.__module__ or "").startswith(COUNTED)
    ]
    for function in found:
        atheris.instrument_func(function)
    return len(found)


def _fill(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = CORPUS.read_text(encoding="ascii").split() if CORPUS.is_file() else []
    for number, data in enumerate([*seeds(), *map(bytes.fromhex, lines)]):
        (folder / f"seed-{number:04d}").write_bytes(data)


def _save(scratch: Path) -> None:
    """Write a minimal set of inputs with the coverage of the whole corpus to wire_corpus.txt."""
    merged = scratch / "merged"
    merged.mkdir(exist_ok=True)
    for path in merged.iterdir():
        path.unlink()
    command = [sys.executable, __file__, "-merge=1", str(merged), str(scratch / "corpus")]
    subprocess.run(command, check=True)
    inputs = sorted((path.read_bytes() for path in merged.iterdir()), key=lambda data: (len(data), data))
    CORPUS.write_text("".join(data.hex() + "\n" for data in inputs), encoding="ascii")
    print(f"{len(inputs)} inputs, {CORPUS.stat().st_size} bytes of hex: {CORPUS}")


def main() -> None:
    options = [argument for argument in sys.argv[1:] if argument.startswith("-")]
    folders = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    merging = any(option.startswith("-merge") for option in options)
    if not merging:
        scratch = Path(folders[0] if folders else "build/fuzz-wire")
        if "--save" in options:
            _save(scratch)
            return
        _fill(scratch / "corpus")
        folders = [str(scratch / "corpus")]
        options.append(f"-artifact_prefix={scratch}/")
    print(f"{_instrument()} functions instrumented", flush=True)
    services = Services()

    def one(data: bytes) -> None:
        run_one(data, services)

    # libFuzzer restarts itself to merge, through the shell and by its name
    itself = shlex.join([sys.executable, __file__])
    atheris.Setup([itself, "-max_len=1024", "-timeout=20", *options, *folders], one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

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
from typing import Any, Final

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

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
_SMALL: Final = (0, 1, 2, 3, 8, 12, 13, 63, 64, 65, 127, 128, 255)
_INTEGERS: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), -1, 2**31 - 1, *_SMALL),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), -1, 2**31, 2**63 - 1, *_SMALL),
    FieldDescriptor.CPPTYPE_UINT64: (2**63, 2**64 - 1, *_SMALL),
    FieldDescriptor.CPPTYPE_ENUM: (-1, 9, 100, 2**31 - 1, *range(6)),
}
_FLOATS: Final = (0.0, -0.0, -1.0, 0.02, 1.0, 1e308, 5e-324, float("nan"), float("inf"), float("-inf"))
_TEXTS: Final = ("", "a", "b", "c", "ä" * 33, "a/b", "/", "a//b", "x" * 129, "x" * 200, "x" * 201, "\0", "𐀀")
#: sequences of four bytes that mean something: as token ids, as float32
_WORDS: Final = (
    b"\0\0\0\0",
    b"\x64\0\0\0",
    b"\x65\0\0\0",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\0\0\0\x80",
    b"\0\0\x80\x3f",
    b"\0\0\x00\x3f",
    b"\x01\0\x80\x3f",
    b"\0\0\xc0\x7f",
    b"\0\0\x80\x7f",
)


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
        _change(message, choice)
    return (data[:1] + message.SerializeToString())[:max_size]


def _change(message: Message, choice: random.Random) -> None:
    field = choice.choice(message.DESCRIPTOR.fields)
    if field.is_repeated:
        _change_list(message, field, choice)
    elif choice.random() < 0.1:
        message.ClearField(field.name)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        _change(getattr(message, field.name), choice)
    else:
        setattr(message, field.name, _value(field, getattr(message, field.name), choice))


def _change_list(message: Message, field: FieldDescriptor, choice: random.Random) -> None:
    items: Any = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key = choice.choice(_TEXTS)
        if choice.random() < 0.3:
            message.ClearField(field.name)
        else:
            items[key] = choice.choice(_TEXTS)
    elif len(items) and choice.random() < 0.3:
        del items[choice.randrange(len(items))]
    elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        if len(items) and choice.random() < 0.7:
            _change(choice.choice(items), choice)
        else:
            new = items.add()
            if len(items) > 1:
                new.CopyFrom(choice.choice(items[:-1]))
            _change(new, choice)
    else:
        items.append(_value(field, None, choice))


def _value(field: FieldDescriptor, old: Any, choice: random.Random) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return not old
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return choice.choice(_FLOATS)
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return _bytes(old or b"", choice)
        case FieldDescriptor.CPPTYPE_STRING:
            return choice.choice(_TEXTS)
        case kind:
            return choice.choice(_INTEGERS[kind])


def _bytes(old: bytes, choice: random.Random) -> bytes:
    at = choice.randrange(len(old) // 4 + 1) * 4
    match choice.randrange(4):
        case 0:
            return old[:at] + choice.choice(_WORDS) * choice.choice((1, 1, 1, 16, 65)) + old[at:]
        case 1:
            return old[:at] + choice.choice(_WORDS) + old[at + 4 :]
        case 2:
            return old[:at] + old[at + choice.choice((1, 4)) :]
        case _:
            return bytes(atheris.Mutate(old, len(old) + 16))


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

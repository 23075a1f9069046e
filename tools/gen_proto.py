"""Generate suffixsvc/v1 from proto/, or compare it with the checked-in files.

    python tools/gen_proto.py            # regenerate
    python tools/gen_proto.py --check    # exit 1 with a diff if proto/ and suffixsvc/v1 differ

The compiler is installed in a separate virtual environment, .venv-proto: grpcio-tools 1.62.3 generates code
for protobuf 4.25 to 7.x, but cannot be installed beside a current grpcio-health-checking.
"""

from __future__ import annotations

import argparse
import difflib
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
TARGET = ROOT / "suffixsvc" / "v1"
VENV = ROOT / ".venv-proto"
# setuptools: grpcio-tools 1.62 imports pkg_resources, which setuptools 81 no longer has
REQUIREMENTS = ["grpcio-tools==1.62.3", "mypy-protobuf==3.6.0", "setuptools<81"]
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")
INIT = '"""Generated from proto/suffixsvc/v1 by tools/gen_proto.py. Never edited."""\n'


def compiler() -> Path:
    """The Python of .venv-proto, which is created on first use."""
    python = VENV / "bin" / "python"
    stamp = VENV / "requirements.stamp"
    wanted = "\n".join(REQUIREMENTS)
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.create(VENV, with_pip=True, clear=VENV.exists())
        subprocess.run(  # noqa: S603 - our own interpreter, fixed arguments
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS],
            check=True,
        )
        stamp.write_text(wanted)
    return python


def generate(folder: Path) -> dict[str, str]:
    """Run protoc into ``folder``; return file name -> text of every file of suffixsvc/v1."""
    files = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))
    command = [
        compiler(),
        "-m",
        "grpc_tools.protoc",
        f"--plugin=protoc-gen-mypy_grpc={VENV / 'bin' / 'protoc-gen-mypy_grpc'}",
        f"--proto_path={PROTO}",
        f"--python_out={folder}",
        f"--pyi_out={folder}",
        f"--grpc_python_out={folder}",
        f"--mypy_grpc_out={folder}",
        *files,
    ]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)  # noqa: S603 - our own compiler, fixed arguments
    out = folder / "suffixsvc" / "v1"
    texts = {path.name: path.read_text() for path in out.iterdir() if path.name.endswith(SUFFIXES)}
    for name in [n for n in texts if n.endswith("_grpc.py") and "class " not in texts[n]]:
        del texts[name], texts[name + "i"]  # protoc writes an empty grpc module for a proto without services
    return {"__init__.py": INIT, **texts}


def checked_in() -> dict[str, str]:
    """File name -> text of the checked-in files."""
    return {path.name: path.read_text() for path in TARGET.glob("*.py*") if path.suffix in (".py", ".pyi")}


def report_drift(have: dict[str, str], want: dict[str, str]) -> int:
    """Print the differences of ``have`` and ``want``; return the number of different files."""
    drifted = sorted(name for name in have.keys() | want.keys() if have.get(name) != want.get(name))
    for name in drifted:
        old, new = have.get(name, ""), want.get(name, "")
        diff = difflib.unified_diff(
            old.splitlines(True), new.splitlines(True), f"checked in/{name}", f"generated/{name}", n=1
        )
        sys.stdout.writelines(list(diff)[:40])
    if drifted:
        print(f"\nsuffixsvc/v1 does not match proto/: {', '.join(drifted)}")
        print("Run: python tools/gen_proto.py, and commit the result.")
    return len(drifted)


def write(want: dict[str, str]) -> None:
    """Replace the checked-in files."""
    TARGET.mkdir(parents=True, exist_ok=True)
    for name in checked_in().keys() - want.keys():
        (TARGET / name).unlink()
    for name, text in want.items():
        (TARGET / name).write_text(text)
    print(f"wrote {len(want)} files to {TARGET.relative_to(ROOT)}")


def main() -> int:
    """Parse the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Generate suffixsvc/v1 from proto/.")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 on a difference")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        want = generate(Path(folder))
    if args.check:
        return 1 if report_drift(checked_in(), want) else 0
    write(want)
    return 0


if __name__ == "__main__":
    sys.exit(main())

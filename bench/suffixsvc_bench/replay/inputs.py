"""Files a replay needs beside the logs: a tokenizer, a measured cost curve, starting weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from suffixsvc_caches.tokenizers import load_tokenizer

from suffixsvc.errors import InvalidCostError, InvalidInputError
from suffixsvc.values import as_cost_curve
from suffixsvc_bench.replay.logs import Encode

__all__ = ["encoder_of", "read_curve", "read_weights", "weights_of"]

_WEIGHTS: Final = ".weights"


def encoder_of(tokenizer: Path) -> Encode:
    """Encodes the texts of logs: with the tokenizer of a GGUF, of a downloaded model, or of a tokenizer.json.

    Raises:
        As :func:`suffixsvc_caches.tokenizers.load_tokenizer`.
    """
    loaded = load_tokenizer(tokenizer)
    return lambda text: loaded.encode_batch([text])[0]


def read_curve(path: Path) -> list[float]:
    """A cost curve: JSON, a list, a list below "curve", "costs" or "cost", or the seconds of a driver's file.

    Raises:
        InvalidCostError: there is none.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidCostError(f"cannot read the cost curve {path}", got=str(error)) from None
    curve = data
    if isinstance(data, dict) and "seconds" in data:  # the driver's own files
        curve = _in_plain_steps(data["seconds"], path)
    for key in ("curve", "costs", "cost"):  # its files of before held {"curve": {"costs": [...]}}
        curve = curve.get(key, curve) if isinstance(curve, dict) else curve
    if isinstance(curve, dict):
        raise InvalidCostError(
            f"{path} holds no curve", expected="a list of numbers", got=f"the keys {', '.join(curve)[:80]}"
        )
    try:
        as_cost_curve(curve, 1)
    except InvalidCostError as error:
        raise InvalidCostError(
            f"{path} holds no curve", expected=error.expected, got=error.got, remedy=error.remedy
        ) from None
    if not isinstance(curve, list):
        raise InvalidCostError(f"{path} holds no curve", expected="a list of numbers", got=repr(curve)[:80])
    return [float(x) for x in curve]


def _in_plain_steps(seconds: object, path: Path) -> list[float]:
    """Entry 1 is what a plain step takes."""
    try:
        values = [float(each) for each in seconds]  # type: ignore[attr-defined]  # what is no list raises
        return [each / values[1] for each in values]
    except (TypeError, ValueError, IndexError, ZeroDivisionError):
        raise InvalidCostError(
            f"{path} holds no curve",
            expected="seconds of every width, those of 1 above 0",
            got=str(seconds)[:80],
        ) from None


def weights_of(folder: Path, name: str) -> Path:
    """The file of the weights that were learned on every log but this one."""
    return folder / (name + _WEIGHTS)


def read_weights(path: Path, name: str) -> bytes:
    """Weights from a file, or from a folder those that know nothing of the log ``name``.

    Raises:
        InvalidInputError: they cannot be read.
    """
    file = weights_of(path, name) if path.is_dir() else path
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidInputError(
            "cannot read starting weights",
            expected="what `suffixsvc bench train` wrote",
            got=f"{file}: {error.strerror}",
        ) from None

"""Files a replay needs beside the logs: a measured cost curve, a tokenizer, starting weights."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Final

import numpy as np

from suffixsvc.errors import InvalidCostError, InvalidInputError, MissingExtraError
from suffixsvc.types import TokenArray
from suffixsvc.values import as_cost_curve
from suffixsvc_bench.replay.logs import Encode

__all__ = ["read_curve", "read_encoder", "read_weights", "weights_of"]

_WEIGHTS: Final = ".weights"


def read_curve(path: Path) -> list[float]:
    """A cost curve: JSON, a list, or a list below "curve", "costs" or "cost".

    Raises:
        InvalidCostError: there is none.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidCostError(f"cannot read the cost curve {path}", got=str(error)) from None
    curve = data
    for key in ("curve", "costs", "cost"):  # the driver's own files hold {"curve": {"costs": [...]}}
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


def read_encoder(path: Path) -> Encode:
    """The encoder of a tokenizer.json (plain or .gz), without special tokens added.

    Raises:
        MissingExtraError, InvalidInputError.
    """
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 - only logs of texts need it
    except ImportError as error:
        raise MissingExtraError("text", "tokenizers") from error
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        tokenizer = Tokenizer.from_str(data.decode("utf-8"))
    # The tokenizers library raises bare Exception for a file it does not understand.
    except Exception as error:
        raise InvalidInputError(
            f"cannot read the tokenizer {path}", expected="a tokenizer.json", got=str(error)[:200]
        ) from None

    def encode(text: str) -> TokenArray:
        return np.asarray(tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int32)

    return encode


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

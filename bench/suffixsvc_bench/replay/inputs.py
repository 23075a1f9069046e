"""Input files of a replay besides the logs: tokenizer, measured cost curve, starting weights."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from suffixsvc.errors import InvalidCostError, InvalidInputError
from suffixsvc.values import as_cost_curve
from suffixsvc_bench.replay.logs import Encode
from suffixsvc_bench.report.output import read_json
from suffixsvc_caches.errors import at_place
from suffixsvc_caches.tokenizers.load import load_tokenizer

_WEIGHTS: Final = ".weights"


def encoder_of(tokenizer: Path) -> Encode:
    """An encoder for the texts of logs: from a GGUF, a downloaded model, or a tokenizer.json.

    Raises:
        InvalidInputError: see :func:`suffixsvc_caches.tokenizers.load.load_tokenizer`.
    """
    loaded = load_tokenizer(tokenizer)
    return lambda text: loaded.encode_batch([text])[0]


def read_curve(path: Path) -> list[float]:
    """Read a cost curve: a JSON list; a list under "curve", "costs" or "cost"; or the seconds of a driver's
    file.

    Raises:
        InvalidCostError: there is no valid curve.
    """
    data = read_json(path, f"the cost curve {path} must be readable JSON", InvalidCostError)
    if isinstance(data, dict) and "seconds" in data:  # the driver's own files
        data = _in_plain_steps(data["seconds"], path)
    for key in ("curve", "costs", "cost"):  # older files of the driver: {"curve": {"costs": [...]}}
        data = data.get(key, data) if isinstance(data, dict) else data
    if not isinstance(data, list):
        got = f"the keys {', '.join(data)[:80]}" if isinstance(data, dict) else repr(data)[:80]
        raise InvalidCostError(f"{path} must contain a curve, a list of numbers", got=got)
    try:
        as_cost_curve(data, 1)
    except InvalidCostError as error:
        raise at_place(path, error) from None
    return [float(x) for x in data]


def _in_plain_steps(seconds: object, path: Path) -> list[float]:
    """Costs relative to entry 1, the seconds of a plain step."""
    try:
        values = [float(each) for each in seconds]  # type: ignore[attr-defined]  # raises if it is not a list
        return [each / values[1] for each in values]
    except (TypeError, ValueError, IndexError, ZeroDivisionError):
        raise InvalidCostError(
            f"{path} must contain the seconds of every width, those of 1 above 0", got=str(seconds)[:80]
        ) from None


def weights_of(folder: Path, name: str) -> Path:
    """Path of the weights that were learned from all logs but this one."""
    return folder / (name + _WEIGHTS)


def read_weights(path: Path, name: str) -> bytes:
    """Weights from a file, or from a folder those that were learned without the log ``name``.

    Raises:
        InvalidInputError: they cannot be read.
    """
    file = weights_of(path, name) if path.is_dir() else path
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidInputError(
            "starting weights must be a readable file of `suffixsvc bench train`",
            got=f"{file}: {error.strerror}",
        ) from None

"""Inputs of the benchmark of building caches: synthetic logs of token ids, and a text shipped with Python."""

from __future__ import annotations

import itertools
import json
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from suffixsvc.types import TokenArray
from suffixsvc_bench.index.texts import stream

#: tokens of a synthetic response
OUTPUT_TOKENS: Final = 500
_GROUP: Final = 2000  # responses per Parquet row group
_RESPONSE_CHARS: Final = 8000  # characters per response of a log made from a text


def synthetic_outputs(tokens: int, seed: int) -> Iterator[TokenArray]:
    """Generate "realistic" responses of :mod:`suffixsvc_bench.index.texts`, about ``tokens`` in all."""
    return itertools.islice(stream("realistic", OUTPUT_TOKENS, seed), max(1, tokens // OUTPUT_TOKENS))


def write_ids(path: Path, responses: Iterator[TokenArray]) -> int:
    """Write a Parquet file with one column of token id lists.

    Returns:
        The number of tokens written.
    """
    import pyarrow as pa  # noqa: PLC0415 - an extra
    import pyarrow.parquet as pq  # noqa: PLC0415 - as above

    tokens = 0
    schema = pa.schema([("response_token_ids", pa.list_(pa.int32()))])
    with pq.ParquetWriter(path, schema) as file:
        while group := list(itertools.islice(responses, _GROUP)):
            ends = np.cumsum([0, *map(len, group)], dtype=np.int32)
            column = pa.ListArray.from_arrays(ends, np.concatenate(group))
            file.write_batch(pa.record_batch([column], schema=schema))
            tokens += int(ends[-1])
    return tokens


def source_text(size: int, given: Path | None = None) -> str:
    """Return the first ``size`` characters of a text; without ``given``, of the standard library's modules by
    name.

    Trailing newlines are removed, because llama-lookup-create drops one.
    """
    if given is not None:
        return given.read_text(encoding="utf-8", errors="replace")[:size].rstrip("\n")
    library = Path(sysconfig.get_path("stdlib"))
    parts, have = [], 0
    for path in sorted(library.rglob("*.py")):
        if "site-packages" in path.parts or have >= size:
            continue
        parts.append(path.read_text(encoding="utf-8", errors="replace"))
        have += len(parts[-1])
    return "".join(parts)[:size].rstrip("\n")


def write_texts(path: Path, text: str) -> Sequence[str]:
    """Write a JSON Lines log whose responses are consecutive pieces of the text; return the responses."""
    responses = [text[i : i + _RESPONSE_CHARS] for i in range(0, len(text), _RESPONSE_CHARS)]
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"response": each}) + "\n" for each in responses)
    return responses

"""Starting weights of new namespaces.

The shipped weights (start_weights.bin) were learned from recorded logs of many kinds of agents (``suffixsvc
bench train``). They contain no text: only counters and mixer weights that depend on neither a tokenizer nor
costs.

Learners with the same starting weights share them until their first update: a namespace in which nothing was
drafted uses no memory for weights.
"""

from __future__ import annotations

import functools
import zlib
from importlib import resources

from suffixsvc.core._ext import LearnedTables, Learner
from suffixsvc.errors import InvalidInputError

#: upper limit of the unpacked size
_MOST_BYTES = 1 << 24


def pack_weights(learner: Learner) -> bytes:
    """Pack the part of a learner that other namespaces can start from; the learner does not change."""
    general = Learner()
    general.load(learner.save())
    general.generalise()
    return zlib.compress(general.save(), 9)


@functools.cache
def starting_weights() -> bytes:
    """Return the shipped weights, packed."""
    return resources.files(__package__).joinpath("start_weights.bin").read_bytes()


@functools.lru_cache(maxsize=4)
def _unpacked(weights: bytes) -> LearnedTables:
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(weights, _MOST_BYTES)
        tables = LearnedTables.parse(data) if unpacker.eof else None
    except zlib.error:
        tables = None
    if tables is None:
        raise InvalidInputError(
            "starting weights must be of this version",
            expected="the result of Namespace.learned_weights() or `suffixsvc bench train`",
            got=f"{len(weights)} other bytes",
            remedy="Learn them again, or leave them out.",
        )
    return tables


def new_learner(weights: bytes | None = None) -> Learner:
    """Create a learner with packed weights: the shipped ones by default; b"" starts from initial values.

    Raises:
        InvalidInputError: the bytes are not weights of this version.
    """
    if weights == b"":
        return Learner()
    return Learner(_unpacked(starting_weights() if weights is None else weights))

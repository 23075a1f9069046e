"""What a namespace that has seen nothing starts from: weights learned elsewhere.

The file beside this one was learned on recorded logs of many kinds of agents (``suffixsvc bench train``). It
holds no text: counters and mixer weights that depend on neither a tokenizer nor a price.

Learners that start from the same weights share them until they learn something: a namespace that nothing was
drafted in takes no memory for them.
"""

from __future__ import annotations

import functools
import zlib
from importlib import resources

from suffixsvc.core._ext import LearnedTables, Learner
from suffixsvc.errors import InvalidInputError

__all__ = ["new_learner", "pack_weights", "starting_weights"]

_FILE = "start_weights.bin"
#: no weights are larger; a file that says so is none of ours
_MOST_BYTES = 1 << 24


def pack_weights(learner: Learner) -> bytes:
    """What of a learner other namespaces can start from. The learner itself stays as it is."""
    general = Learner()
    general.load(learner.save())
    general.generalise()
    return zlib.compress(general.save(), 9)


@functools.cache
def starting_weights() -> bytes:
    """The weights that are shipped, packed."""
    return resources.files(__package__).joinpath(_FILE).read_bytes()


@functools.lru_cache(maxsize=4)
def _unpacked(weights: bytes) -> LearnedTables:
    tables = None
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(weights, _MOST_BYTES)
        if unpacker.eof:
            tables = LearnedTables.parse(data)
    except zlib.error:
        pass  # told below
    if tables is None:
        raise InvalidInputError(
            "not the starting weights of this version",
            expected="what Namespace.learned_weights() or `suffixsvc bench train` gave",
            got=f"{len(weights)} other bytes",
            remedy="Learn them again, or leave them out.",
        )
    return tables


def new_learner(weights: bytes | None = None) -> Learner:
    """A learner that starts from packed weights: the shipped ones, or others. b"" starts from nothing.

    Raises:
        InvalidInputError: bytes that are no weights of this version.
    """
    if weights == b"":
        return Learner()
    return Learner(_unpacked(starting_weights() if weights is None else weights))

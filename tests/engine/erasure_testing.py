"""Helpers of the tests of erasure: recognisable texts, and a search of every byte of a data folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from sealing_testing import NS, open_cache, output

from suffixsvc import Limits, Policies, Policy, SuffixCache
from suffixsvc.types import NewOutput
from support.engine_parts import parts_of

OTHER = "acme/other"
#: some seals of the texts below
LIMITS = Limits(seal_tokens=3000)
#: tokens of a run that is searched: two texts have no run in common that long
RUN = 3


def text_of(seed: int) -> list[int]:
    """A text of its own: 4 to 2,500 ids, none of which another text has."""
    random = Random(seed)
    length = random.choice([4, 40, 300, 2500])
    first = 0x01000000 + (seed << 16)
    return [first + (2 * (i // 128) + 1 << 8) + 2 * (i % 128) + 1 for i in range(length)]


def output_of(seed: int) -> NewOutput:
    """The output of a seed: half of them belong to ann, with some of their own ids as the prompt's tail."""
    text = text_of(seed)
    namespace = OTHER if seed % 5 == 0 else NS
    made = output(text, tail=text[:3], namespace=namespace)
    return NewOutput(
        namespace,
        made.token_ids,
        made.segment_lens,
        made.prompt_tail,
        labels={"seed": str(seed)},
        principal="ann" if is_ann(seed) else "bob",
        session_id=f"session {seed}",
    )


def is_ann(seed: int) -> bool:
    return seed % 2 == 1


def seeds_in(folder: Path, seeds: Iterable[int]) -> set[int]:
    """Which texts some file of a folder holds a part of: a run of tokens, packed as in the log."""
    raw = b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
    return {seed for seed in seeds if any(run in raw for run in _runs(text_of(seed)))}


def _runs(text: Sequence[int]) -> Iterable[bytes]:
    packed = np.asarray(text, "<i4").tobytes()
    last = len(text) - RUN
    for at in sorted({0, 1, last // 3, last // 2, last - 1, last} & set(range(last + 1))):
        yield packed[4 * at : 4 * (at + RUN)]


def ids_in(folder: Path, seeds: Iterable[int]) -> set[int]:
    """Which texts a segment of a folder has an id of, in its alphabet; segments pack texts as codes."""
    known: set[int] = set()
    for path in folder.glob("segments/*.seg"):
        raw = path.read_bytes()
        ids = int.from_bytes(raw[36:40], "little")
        known |= set(np.frombuffer(raw, "<i4", ids, 512).tolist())
    return {seed for seed in seeds if known & set(text_of(seed))}


def fill(cache: SuffixCache, seeds: Sequence[int]) -> None:
    """Write outputs one by one, so that pages are split, copied and freed; seal now and then."""
    for seed in seeds:
        made = output_of(seed)
        cache.namespace(made.namespace).add_outputs([made])
        if seed % 20 == 0:
            cache.seal()


def stored_seeds(cache: SuffixCache) -> set[int]:
    """The seeds of all stored outputs, after a comparison of their texts."""
    found = set()
    for stored in parts_of(cache).store.scan():
        seed = int(stored.output.labels["seed"])
        assert stored.output.token_ids.tolist() == text_of(seed)
        assert stored.output.principal == ("ann" if is_ann(seed) else "bob")
        found.add(seed)
    return found


def reopened(folder: Path, **more: Any) -> SuffixCache:
    """The cache of a folder, without a background thread."""
    return open_cache(folder, LIMITS, policies=Policies({}, Policy()), **more)

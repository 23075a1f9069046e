"""Counts of steps against the same counts taken token by token."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from suffixsvc.types import DraftSource
from suffixsvc_driver.drafts.events import Verify
from suffixsvc_driver.speculation.accounting import EVIDENCE, HitCounts, Stats

SOURCES = [int(source) for source in DraftSource if source is not DraftSource.NONE]
BONUS = 1000


def a_draft(random: Random) -> tuple[Verify, list[str]]:
    """A draft of one or several layers, and the layer of each of its tokens."""
    drafted, padding = random.randrange(7), random.choice([0, 0, 2])
    size = drafted + padding
    tree = drafted > 1 and random.random() < 0.5
    parents = [random.randrange(-1, i) for i in range(drafted)] if tree else list(range(-1, drafted - 1))
    parents += range(drafted - 1, size - 1)
    names = ["suffix", "draft-model"]
    layers = [random.choice(names) for _ in range(drafted)] if tree else [names[0]] * drafted
    at = random.randrange(1, drafted) if not tree and drafted > 1 and random.random() < 0.3 else 0
    if at:
        layers = [names[0]] * at + [names[1]] * (drafted - at)
    one = random.random() < 0.5
    sources = [random.choice(SOURCES)] * drafted if one else [random.choice(SOURCES) for _ in range(drafted)]
    sent = Verify(
        tuple(range(size)),
        (*sources, *[0] * padding),
        (0.5,) * drafted + (0.0,) * padding,
        layers[0] if layers else "",
        padding,
        names[1] if at else "",
        at,
        parents=tuple(parents) if tree else (),
        layers=(*layers, *[""] * padding) if len(set(layers)) > 1 and tree else (),
    )
    return sent, layers


@given(st.integers(0, 2**32))
def test_the_counts_of_steps(seed: int) -> None:
    random, stats = Random(seed), Stats()
    layers: dict[str, HitCounts] = {}
    kinds: dict[str, HitCounts] = {}
    for _ in range(random.choice([1, 8])):
        sent, layer_of = a_draft(random)
        size, drafted = len(sent.token_ids), len(layer_of)
        taken: list[int] = []  # the path that the target takes
        while random.random() < 0.7:
            last = taken[-1] if taken else -1
            children = [i for i in range(size) if (sent.parents[i] if sent.parents else i - 1) == last]
            if not children:
                break
            taken.append(random.choice(children))
        emitted = (*taken, BONUS)[: random.choice([len(taken) + 1, random.randint(1, len(taken) + 1)])]
        path = sent.path(emitted, len(taken))
        origins = sent.origins(path, len(emitted))
        expected = [i for i in emitted if i != BONUS]
        assert list(path) == expected
        assert list(origins) == [0 if i == BONUS else sent.sources[i] for i in emitted]

        # what the generation emits of a tree is all that is known of it
        agreed = {i for i in (expected if sent.parents else taken) if i < drafted}
        assert stats.count_step(sent, len(taken), path, origins) == len(agreed)
        written = [i for i in expected if i < drafted]
        kind_of = [EVIDENCE[source] for source in sent.sources[:drafted]]
        for counts, name_of in (layers, layer_of), (kinds, kind_of):
            of = {name: Counter[str]() for name in name_of}
            for i, name in enumerate(name_of):
                of[name].update(drafted=1, accepted=i in agreed, written=i in written)
            for name, each in of.items():
                counts.setdefault(name, HitCounts()).count(each["drafted"], each["accepted"], each["written"])
        if own := len(emitted) - len(written):
            kinds.setdefault("target", HitCounts()).count(0, 0, own)
    assert {name: counts.sent for name, counts in stats.layers.items()} == layers
    assert stats.evidence == kinds

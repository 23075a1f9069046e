"""Random sequences of writes, deletions, seals, merges, damage and restarts, compared with a model."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sealing_testing import files, ngram_oracle, ngrams, open_cache, output

from suffixsvc import Limits, SuffixCache
from suffixsvc.types import NewOutput
from support.engine_parts import parts_of
from support.long_form import rounds

PATHS = ("a", "a/b")
#: outputs of 3 .. 40 tokens: a seal takes a few
MODEL_LIMITS = Limits(seal_tokens=50)


def invented(random: Random, path: str) -> NewOutput:
    """Repetitive tokens, some of them equal to earlier ones, in one to three runs."""
    length = random.choice([3, 8, 20, 40])
    start = random.randrange(3)
    tokens = [(start + i * random.choice([1, 1, 1, 2])) % 11 for i in range(length)]
    cut = random.randrange(1, length)
    return output(
        tokens,
        tail=[random.randrange(11) for _ in range(random.choice([0, 3, 64]))],
        segments=random.choice([(length,), (cut, length - cut)]),
        namespace=path,
        ttl_seconds=random.choice([0, 0, 5]),
    )


class SealingMachine(RuleBasedStateMachine):
    cache: SuffixCache

    @initialize(seed=st.integers(0, 2**32 - 1))
    def start(self, seed: int) -> None:
        self.random = Random(seed)
        self.scratch = tempfile.TemporaryDirectory(prefix="sealing-model-")
        self.folder = Path(self.scratch.name)
        self.kept: dict[int, NewOutput] = {}
        self.cache = open_cache(self.folder, MODEL_LIMITS)
        for path in PATHS:
            self.cache.namespace(path).put_note("here", b"")  # also without a write

    @rule(path=st.sampled_from(PATHS), count=st.integers(1, 6))
    def add(self, path: str, count: int) -> None:
        batch = [invented(self.random, path) for _ in range(count)]
        self.kept |= dict(zip(self.cache.namespace(path).add_outputs(batch), batch, strict=True))

    @rule(path=st.sampled_from(PATHS), turns=st.integers(1, 3), commit=st.booleans())
    def session(self, path: str, turns: int, commit: bool) -> None:
        """A live output, committed or retracted."""
        wanted = [invented(self.random, path) for _ in range(turns)]
        session = self.cache.namespace(path).open_session(wanted[0].prompt_tail)
        for i, turn in enumerate(wanted):
            if i:
                session.append_context([10, 9])
            session.step(turn.token_ids, max_draft_tokens=3)
        output_id = session.close(commit=commit)
        if output_id is not None:
            self.kept[output_id] = output(
                [t for turn in wanted for t in turn.token_ids.tolist()],
                tail=wanted[0].prompt_tail.tolist(),
                segments=[len(turn.token_ids) for turn in wanted],
                namespace=path,
            )

    @rule(share=st.sampled_from([0.1, 0.5, 1.0]))
    def forget(self, share: float) -> None:
        for output_id in self.random.sample(sorted(self.kept), int(share * len(self.kept))):
            self.cache.namespace(self.kept.pop(output_id).namespace).delete(output_ids=[output_id])

    @rule(path=st.sampled_from(PATHS))
    def forget_many(self, path: str) -> None:
        ours = [i for i, one in self.kept.items() if one.namespace == path]
        chosen = self.random.sample(ours, len(ours) // 2)
        assert parts_of(self.cache).outputs.forget_many(path, [*chosen, 10**9]) == len(chosen)
        for output_id in chosen:
            del self.kept[output_id]

    @rule()
    def expire(self) -> None:
        due = [i for i, one in self.kept.items() if one.ttl_seconds]
        assert self.cache.expire(4e9) == len(due)
        for output_id in due:
            del self.kept[output_id]

    @rule(path=st.sampled_from([None, *PATHS]))
    def seal(self, path: str | None) -> None:
        self.cache.seal(path)

    @rule(path=st.sampled_from(PATHS))
    def seal_one_batch(self, path: str) -> None:
        with parts_of(self.cache).exclusive() as sealer:
            assert sealer is not None
            sealer.seal(parts_of(self.cache).catalog.index_of(path))

    @rule(path=st.sampled_from(PATHS))
    def merge(self, path: str) -> None:
        with parts_of(self.cache).exclusive() as sealer:
            assert sealer is not None
            sealer.merge(parts_of(self.cache).catalog.index_of(path))

    @rule()
    def compact(self) -> None:
        segments = self.cache.compact()
        assert segments <= len(PATHS)
        assert len(files(self.folder)) == segments
        for path in PATHS:
            assert parts_of(self.cache).store.tombstones(path) == {}

    @rule()
    def restart(self) -> None:
        self.cache.close()
        self.cache = open_cache(self.folder, MODEL_LIMITS)

    @rule(how=st.sampled_from(["gone", "cut", "flipped", "newer", "theirs"]))
    def a_file_is_damaged_while_the_cache_is_closed(self, how: str) -> None:
        names = [e.record.name for p in PATHS for e in parts_of(self.cache).catalog.index_of(p).sealed()]
        self.cache.close()
        victim_name = ""
        if names:
            victim = self.folder / "segments" / self.random.choice(names)
            victim_name = victim.name
            raw = bytearray(victim.read_bytes())
            if how == "gone":
                victim.unlink()
            elif how == "cut":
                victim.write_bytes(raw[: self.random.randrange(len(raw))])
            elif how == "flipped":
                raw[self.random.randrange(len(raw))] ^= 0xFF
                victim.write_bytes(raw)
            elif how == "newer":
                raw[8] = 2
                victim.write_bytes(raw)
            else:
                victim.write_bytes(b"not a segment at all")
        self.cache = open_cache(self.folder, MODEL_LIMITS)
        listed = self.listed()
        for left in files(self.folder):
            assert left in listed or left == victim_name, "only what was damaged beyond recognition may stay"
            if left not in listed:
                assert how != "gone"
                (self.folder / "segments" / left).unlink()  # as a user would after reading the log

    def listed(self) -> set[str]:
        return {record.name for path in PATHS for record in parts_of(self.cache).store.segments(path)}

    @invariant()
    def everything_agrees(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        assert set(files(self.folder)) == self.listed()
        for path in PATHS:
            ours = [one for one in self.kept.values() if one.namespace == path]
            stats = self.cache.namespace(path).stats()
            assert stats.outputs == len(ours)
            assert stats.tokens == sum(len(one.token_ids) for one in ours)
            for n in (1, 3):
                assert ngrams(self.cache, n, path) == ngram_oracle(ours, n)

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            self.cache.close()
            self.scratch.cleanup()


TestSealingModel = SealingMachine.TestCase
TestSealingModel.settings = settings(
    max_examples=rounds(10, full=40),
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

"""Trees on real targets: several sequences in one batch, the path that is the model's own kept, the rest
gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from suffixsvc.errors import InvalidConfigError, InvalidInputError, LimitExceededError, ModelError
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.exactness import check_exactness
from suffixsvc_driver.decode.loop import Result, generate
from suffixsvc_driver.drafts.events import FinishReason
from suffixsvc_driver.sampling.settings import GREEDY, Sampling
from suffixsvc_driver.targets.llama.context import ContextSettings, LlamaContext, Part
from suffixsvc_driver.targets.single import LlamaTarget
from support.layers import ScriptedLayer, chain, hostile_drafter, hostile_tree_drafter, tree
from support.targets import WIDTH_INDEPENDENT, nearly_no_flips, same_texts, talkative_prompt
from support.tiny_kinds import KINDS, WINDOW

CARELESS = CostCurve.linear(0.001, 32)
BRANCHING = replace(WIDTH_INDEPENDENT, slots=1, branches=4)
SAMPLED = Sampling(temperature=1.0, top_k=40, seed=5)


@pytest.fixture(scope="module", params=["llama", "moe", "gemma"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaTarget]:
    kind = request.param
    path = KINDS[kind](tmp_path_factory.mktemp(kind) / f"{kind}.gguf", seed=1)
    with LlamaTarget(path, BRANCHING) as target:
        yield target


@pytest.fixture
def tiny(tiny_model: Path) -> Iterator[LlamaTarget]:
    with LlamaTarget(tiny_model, BRANCHING) as target:
        yield target


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_hostile_trees_never_change_the_output(target: LlamaTarget, sampling: Sampling) -> None:
    """And (a), (b) of the same generations. Form (c) is about the tokens here: bits differ once a path was
    taken that did not lie first in its batch."""
    rng = np.random.default_rng(6)
    accepted = rejected = trees = again = 0
    results: list[Result] = []
    wanted: list[Result] = []
    with LlamaTarget(target.model, replace(BRANCHING, branches=0)) as chains:
        for length in (1, 20, 3 * WINDOW, 130):
            prompt = rng.integers(0, 256, size=length).tolist()
            plain = generate(chains, prompt, max_tokens=60, sampling=sampling)
            truth = [*prompt, *plain.token_ids]
            layers = [
                ScriptedLayer(hostile_tree_drafter(rng, truth, target.vocab_size), "tree"),
                ScriptedLayer(hostile_drafter(rng, truth, target.vocab_size), "chain"),
            ]
            result = generate(target, prompt, None, layers, 60, sampling=sampling, curve=CARELESS)
            wanted.append(plain)
            results.append(result)
            assert layers[0].text == [*prompt, *result.token_ids]
            trees += sum(bool(step.decision.parents) for step in result.steps)
            accepted += result.stats.accepted
            again += result.stats.replayed
            rejected += result.stats.drafted - result.stats.accepted
            report = check_exactness(target, result)
            assert report.ok, report.describe()
            assert nearly_no_flips(report)
            assert sum(c.output_tokens for c in result.stats.evidence.values()) == len(result.token_ids)
        same_texts(chains, results, wanted)
    assert accepted > 50
    assert rejected > 80
    assert trees > 10
    assert again > 5


def random_tree(rng: np.random.Generator, most: int, leaves: int) -> tuple[list[int], list[int]]:
    """Tokens, none twice, and parents."""
    n = int(rng.integers(1, most))
    parents: list[int] = []
    for i in range(n):
        inner = {p for p in parents if p >= 0}
        ends = [j for j in range(i) if j not in inner]
        free = range(-1, i) if len(ends) < leaves else ends
        parents.append(int(rng.choice(list(free))) if i else -1)
    return rng.choice(250, n, replace=False).tolist(), parents


def test_every_path_sees_the_text_and_itself_only(target: LlamaTarget) -> None:
    """Logits after every token of random trees equal those of its path alone, for random accepted paths."""
    rng = np.random.default_rng(3)
    with LlamaTarget(target.model, replace(BRANCHING, branches=0)) as alone:
        for _ in range(4):
            text = rng.integers(0, 256, size=int(rng.integers(1, 90))).tolist()
            target.begin(text)
            for _ in range(4):
                tokens, parents = random_tree(rng, 14, target.max_branches)
                rows = target.propose([(0, tokens, parents)])[0]
                for node in range(-1, len(tokens)):
                    path, at = [], node
                    while at >= 0:
                        path.insert(0, tokens[at])
                        at = parents[at]
                    alone.begin([*text, *path])
                    expected = alone.compute(([*text, *path][-1],))[0]
                    assert rows[node + 1] == pytest.approx(expected, abs=3e-3)
                    assert rows[node + 1].argmax() == expected.argmax()
                emitted = [*path, int(rng.integers(0, 250))]  # the path of the last node, and another token
                target.commit([(0, tokens, parents)], [emitted])
                text += emitted
                assert target.position == len(text) - 1


def test_bits_are_those_of_chains(target: LlamaTarget) -> None:
    """Form (c), of logits, behind the text and along the first path of every tree: branches beside it are
    zeros in every sum. Another path lies apart and rounds otherwise, for this one step: what is taken of it
    is computed again, so the cells of the text are always those of chains."""
    rng = np.random.default_rng(8)
    again = 0
    with LlamaTarget(target.model, replace(BRANCHING, branches=0)) as chains:
        prompt = rng.integers(0, 256, size=40).tolist()
        target.begin(prompt, fresh=True)
        chains.begin(prompt, fresh=True)
        for _ in range(40):
            tokens, parents = random_tree(rng, 10, target.max_branches)
            path, at = [], int(rng.integers(-1, len(tokens)))
            while at >= 0:
                path.insert(0, at)
                at = parents[at]
            rows = target.propose([(0, tokens, parents)])[0]
            text = [tokens[i] for i in path]
            # a token more: a batch of one is computed by another routine
            expected = chains.propose([(0, (*text, 5), ())])[0]
            for i, row in enumerate([0, *(node + 1 for node in path)]):
                if row == i:
                    assert rows[row].tobytes() == expected[i].tobytes()
                assert rows[row] == pytest.approx(expected[i], abs=3e-3)
            target.commit([(0, tokens, parents)], [(*text, 7)])
            chains.commit([(0, (*text, 5), ())], [(*text, 7)])
            again += sum(node != i for i, node in enumerate(path))
    assert again > 10


def test_the_same_operations_give_the_same_bits(target: LlamaTarget) -> None:
    """Form (a), of logits instead of tokens: the text before was written in trees too, and cut in the middle
    of one."""
    rng = np.random.default_rng(12)
    text = rng.integers(0, 256, size=30).tolist()
    target.begin(text, fresh=True)
    history = target.begin(text).history
    for turn in range(4):
        batches, seen, last = [], [], text[-1]
        for _ in range(5):
            tokens, parents = random_tree(rng, 12, target.max_branches)
            rows = target.propose([(0, tokens, parents)])[0]
            path, at = [], int(rng.integers(-1, len(tokens)))
            while at >= 0:
                path.insert(0, tokens[at])
                at = parents[at]
            emitted = [*path, int(rng.integers(0, 250))]
            target.commit([(0, tokens, parents)], [emitted])
            batches.append((tokens, emitted, parents))
            seen.append(b"".join(row.tobytes() for row in rows))
            text += emitted
        target.begin([last], fresh=True)
        target.replay(history)
        for (tokens, emitted, parents), bits in zip(batches, seen, strict=True):
            assert b"".join(row.tobytes() for row in target.propose([(0, tokens, parents)])[0]) == bits
            target.commit([(0, tokens, parents)], [emitted])
        text = [*text[: -3 - turn], *rng.integers(0, 256, size=6).tolist()]
        prefill = target.begin(text)
        assert prefill.reused > 0
        history = prefill.history


def test_the_root_itself_may_be_all_that_stays(tiny: LlamaTarget) -> None:
    prompt = talkative_prompt(tiny, 12)
    truth = generate(tiny, prompt, max_tokens=12).token_ids
    wrong = [(t + 1) % 250 for t in truth]
    tiny.begin(prompt)
    seen = tiny.verify((wrong[0], truth[1], (wrong[0] + 1) % 250), GREEDY, 12, parents=(-1, 0, -1))
    assert (seen.emitted, seen.accepted) == (truth[:1], 0)
    # the whole path of the last leaf, and the target's own token after it
    drafted = (wrong[1], truth[1], wrong[2], truth[2], truth[3])
    seen = tiny.verify(drafted, GREEDY, 11, parents=(-1, -1, 1, 1, 3))
    assert (seen.emitted, seen.accepted) == (truth[1:5], 3)
    assert seen.replay == 3, "it did not lie first: its tokens go again, and are not verified again"
    # no more than is wanted, though more was right
    seen = tiny.verify((wrong[5], truth[5], truth[6], truth[7]), GREEDY, 2, parents=(-1, -1, 1, 2))
    assert (seen.emitted, seen.accepted, seen.replay) == (truth[5:7], 2, 1)
    # a chain in other words, and a plain step
    seen = tiny.verify(truth[7:9], GREEDY, 9, parents=(-1, 0))
    assert (seen.emitted, seen.replay) == (truth[7:10], 0)
    assert tiny.verify((), GREEDY, 2).emitted == truth[10:11]
    assert tiny.position == len(prompt) + 10


def test_trees_that_cannot_be(tiny: LlamaTarget) -> None:
    prompt = talkative_prompt(tiny, 6)
    truth = generate(tiny, prompt, max_tokens=6).token_ids
    tiny.begin(prompt)
    with pytest.raises(LimitExceededError, match="at most 5"):
        tiny.verify(range(6), GREEDY, 6, parents=(-1,) * 6)
    with pytest.raises(InvalidInputError, match="before"):
        tiny.verify((1, 2), GREEDY, 6, parents=(1, -1))
    with pytest.raises(InvalidInputError, match="expected 2"):
        tiny.verify((1, 2), GREEDY, 6, parents=(-1,))
    with pytest.raises(LimitExceededError, match="too wide"):
        tiny.verify([3] * 40, GREEDY, 6, parents=[-1, -1, *range(38)])
    assert tiny.verify((truth[0], 3), GREEDY, 6, parents=(-1, -1)).emitted == truth[:2]
    with pytest.raises(InvalidConfigError, match="branches"):
        ContextSettings(branches=-1)
    with pytest.raises(InvalidConfigError, match="256"):
        ContextSettings(slots=8, branches=248)


def test_who_cannot_branch_takes_chains(tmp_path: Path) -> None:
    kinds = {"mamba": BRANCHING, "lfm2": BRANCHING, "gemma": replace(BRANCHING, full_window=False)}
    for kind, settings in kinds.items():
        with LlamaTarget(KINDS[kind](tmp_path / f"{kind}.gguf", seed=1), settings) as target:
            assert target.max_branches == 1
            assert not target.context.unified
            prompt = talkative_prompt(target, 12)
            plain = generate(target, prompt, max_tokens=12).token_ids
            layer = ScriptedLayer(lambda text, budget: tree((1, 2, 3), (-1, -1, 1), (0.9, 0.5, 0.9)))
            result = generate(target, prompt, None, [layer], 12, curve=CARELESS)
            assert result.token_ids == plain
            assert result.stats.drafted > 0
            assert not any(step.decision.parents for step in result.steps)
            with pytest.raises(LimitExceededError, match="at most 1"):
                target.verify((1, 2), GREEDY, 6, parents=(-1, -1))


def test_a_full_context_ends_in_the_middle_of_a_tree(target: LlamaTarget) -> None:
    """Every token of a tree takes a cell: none is drafted that has none."""
    rng = np.random.default_rng(2)
    with LlamaTarget(target.model, replace(BRANCHING, branches=0)) as chains:
        for room in (1, 5, 20):
            prompt = rng.integers(0, 256, size=target.context_size - room).tolist()
            plain = generate(chains, prompt, max_tokens=60)
            truth = [*prompt, *plain.token_ids]
            layer = ScriptedLayer(hostile_tree_drafter(rng, truth, target.vocab_size))
            result = generate(target, prompt, None, [layer], 60, curve=CARELESS)
            assert (result.token_ids, result.finish) == (plain.token_ids, plain.finish)
            assert result.finish in (FinishReason.CONTEXT, FinishReason.STOP)
            assert all(s.start + len(s.token_ids) <= target.context_size for s in result.steps)
            report = check_exactness(target, result)
            assert report.ok, report.describe()
        tokens, parents = [*range(20)], [-1, *range(18), -1]
        target.begin(rng.integers(0, 256, size=target.context_size - 10).tolist())
        with pytest.raises(LimitExceededError, match="full"):
            target.verify(tokens, GREEDY, 60, parents=parents)


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_slots_and_branches_share_one_memory(tmp_path: Path, kind: str) -> None:
    """Three agents with a common system prompt, their conversations going on in turns, drafts in trees: what
    each writes is what a fresh target writes, and nothing is prefilled twice."""
    rng = np.random.default_rng(11)
    path = KINDS[kind](tmp_path / "m.gguf", seed=7)
    with (
        LlamaTarget(path, replace(BRANCHING, slots=3)) as target,
        LlamaTarget(path, replace(BRANCHING, branches=0)) as fresh,
    ):
        system = rng.integers(0, 256, size=60).tolist()
        texts = [[*system, *rng.integers(0, 256, size=12).tolist()] for _ in range(5)]
        for turn in range(3):
            for i, text in enumerate(texts[: 5 if turn == 2 else 3]):
                fresh.begin(text, fresh=True)
                expected = [fresh.verify((), GREEDY, 1).emitted[0] for _ in range(15)]
                expected = expected[
                    : next((k + 1 for k, t in enumerate(expected) if t in target.eog_ids), 15)
                ]
                layer = ScriptedLayer(hostile_tree_drafter(rng, [*text, *expected], target.vocab_size))
                result = generate(target, text, None, [layer], 15, curve=CARELESS)
                assert list(result.token_ids) == expected
                # windows forget in shared memory, now and then
                if (turn or i) and kind == "llama":
                    assert result.prefill.reused >= len(system)
                texts[i] = [*text, *expected, *rng.integers(0, 256, size=4).tolist()]


def test_a_batch_that_fails_leaves_the_text_as_it_was(
    tiny: LlamaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = talkative_prompt(tiny, 10)
    truth = generate(tiny, prompt, max_tokens=10).token_ids
    tiny.begin(prompt)
    tiny.verify((5, truth[0]), GREEDY, 9, parents=(-1, -1))
    real, failures = LlamaContext.decode_parts, iter([True])

    def fails_once(context: LlamaContext, parts: list[Part]) -> list[int]:
        offsets = real(context, parts)
        if next(failures, False):
            raise ModelError("llama_decode failed", expected=0, got=-3)
        return offsets

    monkeypatch.setattr(LlamaContext, "decode_parts", fails_once)
    drafted, parents = (5, truth[2], truth[3]), (-1, -1, 1)
    with pytest.raises(ModelError, match="-3"):
        tiny.verify(drafted, GREEDY, 9, parents=parents)
    assert tiny.verify(drafted, GREEDY, 9, parents=parents).emitted == truth[2:5]
    # nothing of it is left in memory: as much text as fits goes in
    tiny.begin([1] * tiny.context_size)


def test_a_stop_rule_that_raises_leaves_the_text_as_it_was(target: LlamaTarget) -> None:
    prompt = talkative_prompt(target, 8)
    truth = generate(target, prompt, max_tokens=8).token_ids

    def angry(written: Sequence[int]) -> bool:
        raise ValueError(len(written))

    target.begin(prompt)
    seen: list[int] = []

    def watch(written: Sequence[int]) -> bool:
        seen[:] = written
        return False

    for parents in ((), (-1, -1)):
        with pytest.raises(ValueError, match="1"):
            target.verify((truth[0], 3), GREEDY, 8, angry, parents=parents)
    assert target.verify((3, truth[0]), GREEDY, 8, watch, parents=(-1, -1)).emitted == truth[:2]
    assert tuple(seen) == truth[:2]


def test_closed_in_the_middle(tiny_model: Path) -> None:
    """From a callback: a clear error instead of a dead process."""
    for where in ("on_step", "stop"):
        target = LlamaTarget(tiny_model, BRANCHING)
        prompt = talkative_prompt(target, 8)

        def close(*_: object, target: LlamaTarget = target) -> bool:
            target.close()
            return False

        layer = ScriptedLayer(lambda text, budget: chain([1, 2, 3]))
        stop, on_step = (close, None) if where == "stop" else (None, close)
        with pytest.raises(ModelError, match="closed"):
            generate(target, prompt, None, [layer], 8, curve=CARELESS, stop=stop, on_step=on_step)
        with pytest.raises(ModelError, match="closed"):
            target.begin(prompt)

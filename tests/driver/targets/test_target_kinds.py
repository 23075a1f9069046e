"""Kinds of targets that keep different states: attention, mixture of experts, sliding window, recurrent with
and without snapshots. All must write what plain decoding writes, bit for bit (form (c))."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from suffixsvc.errors import InvalidConfigError, ModelError
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.exactness import check_exactness
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.profile.target_cost import measure_curve, seconds_per_step
from suffixsvc_driver.sampling.settings import GREEDY, Sampling
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets.llama.context import LlamaContext, Part
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.rollback import RollbackMethod
from suffixsvc_driver.targets.single import LlamaTarget
from support.layers import ScriptedLayer, chain, half_right, hostile_drafter
from support.targets import WIDTH_INDEPENDENT, talkative_prompt
from support.tiny_kinds import KINDS, WINDOW, write_tiny_gemma, write_tiny_mamba, write_tiny_moe

CARELESS = CostCurve.linear(0.001, 32)
#: name of a test -> kind of model, settings
STATES = {
    "llama": ("llama", WIDTH_INDEPENDENT),
    "moe": ("moe", WIDTH_INDEPENDENT),
    "window": ("gemma", WIDTH_INDEPENDENT),
    "window-forgetting": ("gemma", replace(WIDTH_INDEPENDENT, full_window=False)),
    "recurrent": ("mamba", WIDTH_INDEPENDENT),
    "hybrid": ("lfm2", WIDTH_INDEPENDENT),
    "hybrid-checkpoints": ("lfm2", replace(WIDTH_INDEPENDENT, snapshots=False)),
}


@pytest.fixture(scope="module", params=list(STATES))
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaTarget]:
    kind, settings = STATES[request.param]
    path = KINDS[kind](tmp_path_factory.mktemp(kind) / f"{kind}.gguf", seed=1)
    with LlamaTarget(path, settings) as target:
        yield target


@pytest.mark.parametrize(
    "sampling", [GREEDY, Sampling(temperature=1.0, top_k=40, seed=5)], ids=["greedy", "sampled"]
)
def test_hostile_drafts_never_change_the_output(target: LlamaTarget, sampling: Sampling) -> None:
    """Prompts longer than the window too; and (a), (b) of the same generations."""
    rng = np.random.default_rng(6)
    accepted = rejected = 0
    for length in (1, 20, 3 * WINDOW, 130):
        prompt = rng.integers(0, 256, size=length).tolist()
        plain = generate(target, prompt, max_tokens=60, sampling=sampling)
        truth = [*prompt, *plain.token_ids]
        for policy in ("expected-gain", "first-match"):
            layer = ScriptedLayer(hostile_drafter(rng, truth, target.vocab_size))
            config = DriverConfig(policy=policy)
            result = generate(target, prompt, config, [layer], 60, sampling=sampling, curve=CARELESS)
            assert result.token_ids == plain.token_ids
            accepted += result.stats.accepted
            rejected += result.stats.drafted - result.stats.accepted
            report = check_exactness(target, result)
            assert report.ok, report.describe()
            assert report.flips == ()
    assert accepted > 50
    assert rejected > 50


def test_a_longer_prompt_reuses_the_kv_of_its_prefix(target: LlamaTarget) -> None:
    """The next turn holds the last prompt and answer; where the state cannot be cut, a prompt that leaves it
    is computed from the start. Either way the answers are those of a fresh target."""
    rng = np.random.default_rng(9)
    with LlamaTarget(target.model, target.settings) as fresh:
        for _ in range(3):
            text = rng.integers(0, 256, size=60).tolist()
            for turn in range(3):
                layer = ScriptedLayer(lambda text, budget: chain([text[-1]] * min(budget, 5)))
                result = generate(target, text, None, [layer], 12, curve=CARELESS)
                fresh.begin(text, fresh=True)
                assert result.token_ids[:1] == fresh.verify((), GREEDY, 1).emitted
                if turn and target.rollback.method is not RollbackMethod.CHECKPOINT:
                    assert result.prefill.reused >= len(text) - 12 - 8
                text = [*text, *result.token_ids, *rng.integers(0, 256, size=5).tolist()]
            # the same beginning, another end: attention keeps it, a state does not
            other = [*text[:70], *rng.integers(0, 256, size=9).tolist()]
            result = generate(target, other, max_tokens=8)
            fresh.begin(other, fresh=True)
            expected = [fresh.verify((), GREEDY, 1).emitted[0] for _ in range(len(result.token_ids))]
            assert list(result.token_ids) == expected


def test_what_steps_cost_can_be_measured(target: LlamaTarget) -> None:
    curve, samples = measure_curve(target, rounds=2)
    assert curve.max_width == target.max_width
    assert set(samples) >= {2, 8, 32}
    assert seconds_per_step(target, rounds=3) > 0
    prompt = talkative_prompt(target, 6)
    assert len(generate(target, prompt, max_tokens=6, curve=curve).token_ids) == 6


def test_the_way_back_is_found_by_trying(tmp_path: Path) -> None:
    expected = {
        "llama": (RollbackMethod.TRUNCATE, True),
        "moe": (RollbackMethod.TRUNCATE, True),
        "gemma": (RollbackMethod.TRUNCATE, True),
        "mamba": (RollbackMethod.CHECKPOINT, False),
    }
    for kind, (rollback, anywhere) in expected.items():
        with LlamaTarget(KINDS[kind](tmp_path / f"{kind}.gguf"), WIDTH_INDEPENDENT) as target:
            assert target.rollback.method is rollback
            assert target.rollback.cuts_anywhere is anywhere
            assert target.replays is (rollback is RollbackMethod.CHECKPOINT)
    path = KINDS["lfm2"](tmp_path / "lfm2.gguf")
    with LlamaTarget(path, WIDTH_INDEPENDENT) as target:
        assert target.rollback.method is RollbackMethod.SNAPSHOT
        assert target.context.snapshots == 32
        assert not target.rollback.cuts_anywhere
    with LlamaTarget(path, replace(WIDTH_INDEPENDENT, snapshots=False)) as target:
        assert target.rollback.method is RollbackMethod.CHECKPOINT


def test_accepted_tokens_are_not_verified_twice(tmp_path: Path) -> None:
    """After a draft that was accepted in part, its tokens go again, in front of the next batch."""
    path = write_tiny_mamba(tmp_path / "m.gguf", seed=1)
    with LlamaTarget(path, WIDTH_INDEPENDENT) as target:
        prompt = talkative_prompt(target, 12)
        truth = generate(target, prompt, max_tokens=12).token_ids
        target.begin(prompt)
        wrong = (truth[3] + 1) % 256
        seen = target.verify((*truth[:3], wrong, 7), GREEDY, 12)
        assert (seen.emitted, seen.accepted, seen.replay) == (truth[:4], 3, 4)
        assert target.position == len(prompt) - 1 + 4
        # again in part: what waits only grows
        seen = target.verify((truth[4], (truth[5] + 1) % 256), GREEDY, 8)
        assert (seen.emitted, seen.accepted, seen.replay) == (truth[4:6], 1, 6)
        seen = target.verify((), GREEDY, 6)
        assert (seen.emitted, seen.replay) == ((truth[6],), 0)
        seen = target.verify(truth[7:9], GREEDY, 5)
        assert (seen.emitted, seen.accepted, seen.replay) == (truth[7:10], 2, 0)


def test_first_match_does_not_replay_more_than_a_batch_holds(tmp_path: Path) -> None:
    """Every draft is accepted in part, so that only a step without drafts ends the growth of the replay."""
    path = write_tiny_mamba(tmp_path / "m.gguf", seed=1)
    with LlamaTarget(path, replace(WIDTH_INDEPENDENT, max_width=8, batch_size=9)) as target:
        prompt = talkative_prompt(target, 60)
        truth = generate(target, prompt, max_tokens=60).token_ids
        layer = ScriptedLayer(half_right([*prompt, *truth]))
        config = DriverConfig(policy="first-match")
        result = generate(target, prompt, config, [layer], 60, curve=CostCurve.linear(0.001, 8))
        assert result.token_ids == truth
        assert max(len(step.token_ids) + step.replayed for step in result.steps) <= 8
        assert sum(step.replayed for step in result.steps) > 30
        assert check_exactness(target, result).ok


def test_a_window_that_forgets_is_not_used_for_what_it_forgot(tmp_path: Path) -> None:
    """Without the whole text in memory, an old beginning cannot be used again; a new one can."""
    path = write_tiny_gemma(tmp_path / "g.gguf", seed=2)
    rng = np.random.default_rng(4)
    # windows are kept in blocks of 256: only a text far longer loses something
    text = rng.integers(0, 256, size=1500).tolist()
    small = replace(WIDTH_INDEPENDENT, context_size=2048, batch_size=64, full_window=False, slots=1)
    with (
        LlamaTarget(path, small) as target,
        LlamaTarget(target.model, replace(small, full_window=True)) as full,
    ):
        for prompt in (text, [*text[:1490], 5, 6], [*text[:300], 5, 6]):
            expected = generate(full, prompt, max_tokens=8)
            result = generate(target, prompt, max_tokens=8)
            assert result.token_ids == expected.token_ids
            if len(prompt) == 302:
                assert expected.prefill.reused == 300
                assert result.prefill.reused == 0
            elif len(prompt) == 1492:
                assert result.prefill.reused == 1490


def test_a_batch_that_fails_leaves_the_text_as_it_was(
    target: LlamaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp failing in the middle of a generation: the same step again gives the same tokens."""
    prompt = talkative_prompt(target, 10)
    truth = generate(target, prompt, max_tokens=10).token_ids
    target.begin(prompt)
    target.verify(truth[:2], GREEDY, 9)
    real, failures = LlamaContext.decode_part, iter([True])

    def fails_once(context: LlamaContext, part: Part) -> None:
        real(context, part)
        if next(failures, False):
            raise ModelError("llama_decode failed", expected=0, got=-3)

    monkeypatch.setattr(LlamaContext, "decode_part", fails_once)
    with pytest.raises(ModelError, match="-3"):
        target.verify((truth[3], 5, 5), GREEDY, 9)
    assert target.verify((truth[3],), GREEDY, 9).emitted == truth[3:5]


def test_batches_as_wide_as_drafts(tmp_path: Path) -> None:
    """A hybrid whose snapshots filled a whole batch: llama.cpp aborted the process in the first one."""
    path = KINDS["lfm2"](tmp_path / "lfm2.gguf", seed=1)
    small = replace(WIDTH_INDEPENDENT, batch_size=8, max_width=8, slots=1)
    with LlamaTarget(path, small) as target, LlamaTarget(target.model, WIDTH_INDEPENDENT) as usual:
        prompt = talkative_prompt(usual, 30)
        truth = [*prompt, *generate(usual, prompt, max_tokens=30).token_ids]
        layer = ScriptedLayer(hostile_drafter(np.random.default_rng(3), truth, target.vocab_size))
        curve = CostCurve.linear(0.001, 8)
        result = generate(target, prompt, None, [layer], 30, curve=curve)
        assert [*prompt, *result.token_ids] == truth
        assert max(len(step.token_ids) for step in result.steps) == 8


# -- mixtures of experts


def test_other_numbers_of_experts_are_other_models(tmp_path: Path) -> None:
    """Drafts never change what each of them writes."""
    path = write_tiny_moe(tmp_path / "moe.gguf", seed=4, experts=4, used=2)
    prompt = list(b"SELECT name FROM users")
    texts, logits = {}, {}
    for used in (None, 1, 2, 3, 4):
        with LlamaModel(path, experts_used=used) as model, LlamaTarget(model, WIDTH_INDEPENDENT) as target:
            plain = generate(target, prompt, max_tokens=30).token_ids
            rng = np.random.default_rng(1)
            layer = ScriptedLayer(hostile_drafter(rng, [*prompt, *plain], target.vocab_size))
            assert generate(target, prompt, None, [layer], 30, curve=CARELESS).token_ids == plain
            texts[used] = plain
            target.begin([1], fresh=True)
            logits[used] = target.compute(prompt)[-1].tobytes()
    assert texts[None] == texts[2]
    assert logits[None] == logits[2]
    assert len(set(logits.values())) == 4


@pytest.mark.parametrize("used", [0, 5, -1, True, 2.0])
def test_numbers_of_experts_that_cannot_be(tmp_path: Path, used: object) -> None:
    path = write_tiny_moe(tmp_path / "moe.gguf")
    with pytest.raises(InvalidConfigError, match=r"must be in 1 \.\. 4"):
        LlamaModel(path, experts_used=used)  # type: ignore[arg-type]  # that is the point


def test_an_override_that_llama_cpp_would_ignore_is_refused(tmp_path: Path) -> None:
    path = write_tiny_moe(tmp_path / "moe.gguf", used=[2, 1])
    with pytest.raises(InvalidConfigError, match="for each layer"):
        LlamaModel(path, experts_used=1)
    LlamaModel(path).close()


def test_a_dense_model_has_no_experts(tiny_model: Path) -> None:
    with pytest.raises(InvalidConfigError, match="no experts"):
        LlamaModel(tiny_model, experts_used=1)


def test_what_one_target_has_computed_another_goes_on_with(target: LlamaTarget) -> None:
    """Bit for bit, whatever was in the slot before, as often as one likes."""
    rng = np.random.default_rng(12)
    with LlamaTarget(target.model, target.settings) as other:
        for length in (1, 30, 3 * WINDOW):
            prompt = rng.integers(0, 256, size=length).tolist()
            layer = ScriptedLayer(lambda text, budget: chain([text[-1]] * min(budget, 5)))
            generate(other, rng.integers(0, 256, size=50).tolist(), None, [layer], 12, curve=CARELESS)
            target.begin(prompt, fresh=True)
            snapshot = target.snapshot()
            assert snapshot.token_ids == tuple(prompt[:-1])
            for _ in range(2):
                other.restore(snapshot)
                result = generate(other, prompt, max_tokens=20)
                assert (result.prefill.reused, result.prefill.computed) == (length - 1, 0)
                assert check_exactness(other, result).ok
            assert generate(target, prompt, max_tokens=20).token_ids == result.token_ids


@pytest.mark.parametrize("kind", list(KINDS))
def test_what_cannot_be_adopted_is_refused(kind: str, tmp_path: Path) -> None:
    """Snapshots of another model of the same shape, of another number of experts, and without a state."""
    ours, others = (KINDS[kind](tmp_path / f"{seed}.gguf", seed=seed) for seed in (1, 2))
    prompt, settings = list(range(40)), replace(WIDTH_INDEPENDENT, slots=1)
    with LlamaTarget(ours, settings) as target, LlamaTarget(others, settings) as other:
        expected = generate(other, prompt, max_tokens=8).token_ids
        target.begin(prompt)
        snapshot = target.snapshot()
        with pytest.raises(ModelError, match="must be of this model"):
            other.restore(snapshot)
        nothing = replace(snapshot, state=(ctypes.c_uint8 * 0)())
        with pytest.raises(ModelError, match="could not restore a state"):
            target.restore(nothing)
        assert generate(target, prompt, max_tokens=8).prefill.computed == len(prompt) - 1
        target.restore(snapshot)
        with pytest.raises(ModelError):
            target.verify([], GREEDY, 5)
        assert generate(other, prompt, max_tokens=8).token_ids == expected
    if kind == "moe":
        with (
            LlamaModel(ours, experts_used=1) as model,
            LlamaTarget(model, settings) as fewer,
            pytest.raises(ModelError, match="must be of this model"),
        ):
            fewer.restore(snapshot)


def test_thousands_of_threads_are_refused() -> None:
    """llama.cpp's threads spin: they would bring the machine to a stop."""
    with pytest.raises(InvalidConfigError, match="threads must be <="):
        replace(WIDTH_INDEPENDENT, threads=9999)

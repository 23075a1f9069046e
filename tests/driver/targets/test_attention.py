"""Flash attention: tried if it is not set, and used if the rounding is then independent of the width."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from suffixsvc.errors import ModelError
from suffixsvc.types import FloatArray
from suffixsvc_driver.targets.llama import attention
from suffixsvc_driver.targets.llama.attention import choose_flash_attention
from suffixsvc_driver.targets.llama.context import ContextSettings, LlamaContext
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.parallel import ParallelLlama
from suffixsvc_driver.targets.single import LlamaTarget


@pytest.fixture
def model(tiny_model: Path) -> LlamaModel:
    return LlamaModel(tiny_model)


def test_what_was_said_holds_and_nothing_is_tried(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "LlamaContext", None)
    with model:
        for said in (True, False):
            assert choose_flash_attention(model, ContextSettings(flash_attention=said)) is said
        assert choose_flash_attention(model, ContextSettings(max_width=1)) is None


def test_lanes_share_kv_with_it_without_a_trial(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(attention, "LlamaContext", None)
        with ParallelLlama(model, ContextSettings(context_size=256, threads=1, slots=2)) as target:
            assert target.settings.flash_attention is True
    with model, ParallelLlama(model, ContextSettings(context_size=256, flash_attention=False)) as target:
        assert target.settings.flash_attention is False


def test_the_trial_decides_for_shared_kv_of_type_f32(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernel is ten times slower than attention without it."""
    monkeypatch.setattr(attention, "_is_width_independent", lambda model, threads: False)
    settings = ContextSettings(context_size=256, threads=1, slots=2, kv_type="f32")
    with model:
        assert choose_flash_attention(model, settings, shared=True) is False


@pytest.mark.parametrize("shows", [False, True])
def test_it_stays_where_the_width_of_a_batch_does_not_show(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch, shows: bool
) -> None:
    """Once for a loaded model; the target then computes so, and says so."""
    opened: list[ContextSettings] = []

    class Rounding(LlamaContext):
        def __init__(self, model: LlamaModel, settings: ContextSettings) -> None:
            opened.append(settings)
            super().__init__(model, settings)
            self.tokens = 0

        def logits(self, index: int) -> FloatArray:
            self.tokens += 1
            # the last token alone, one unit in the last place off
            last = shows and self.tokens == 8
            row = np.zeros(4, np.float32)
            return np.nextafter(row, 1, dtype=np.float32) if last else row

    monkeypatch.setattr(attention, "LlamaContext", Rounding)
    with model:
        for _ in range(2):
            with LlamaTarget(model, ContextSettings(context_size=256, threads=1)) as target:
                assert target.settings.flash_attention is not shows
    assert [settings.flash_attention for settings in opened] == [True]


def test_where_it_cannot_be_tried_llama_cpp_chooses(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ModelError("no memory")

    monkeypatch.setattr(attention, "LlamaContext", fail)
    with model:
        assert choose_flash_attention(model, ContextSettings()) is None


@pytest.mark.model
def test_a_real_model_of_the_first_kind(real_model: Path) -> None:
    with LlamaModel(real_model) as model:
        assert choose_flash_attention(model, ContextSettings(threads=1)) is True

"""Settings files: what is written is read back, and what is wrong is named."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixsvc.errors import InvalidConfigError
from suffixsvc_driver.profile.settings_file import (
    DraftModelSettings,
    LayerSettings,
    Settings,
    TargetSettings,
    read_settings,
    write_settings,
)
from suffixsvc_driver.sampling.settings import Sampling
from suffixsvc_driver.settings.driver_config import Controller, DriverConfig, Policy
from suffixsvc_driver.settings.model_class import ModelClass

counts = st.integers(1, 10_000)
settings = st.builds(
    Settings,
    driver=st.builds(
        DriverConfig,
        policy=st.sampled_from(Policy),
        max_draft_tokens=counts,
        first_match_cost=st.floats(0, 1e6),
        controller=st.sampled_from([Controller.FIXED, Controller.CONTENT]),
        k_start=st.integers(4, 24),
        rate_decay=st.floats(0.001, 0.999),
        model_class=st.none() | st.sampled_from(ModelClass),
    ),
    target=st.builds(
        TargetSettings,
        threads=st.none() | st.integers(1, 4),
        context_size=st.none() | counts,
        experts_used=st.none() | counts,
        max_width=st.integers(1, 512),
        flash_attention=st.none() | st.booleans(),
        kv_type=st.sampled_from(["f16", "f32"]),
        snapshots=st.booleans(),
        branches=st.integers(0, 8),
        gpu_layers=st.just(-1) | counts,
        tensor_split=st.lists(st.floats(0.5, 8), max_size=3).map(tuple),
        kv_offload=st.booleans(),
    ),
    sampling=st.builds(
        Sampling,
        temperature=st.just(0.0) | st.floats(0.001, 10),
        top_k=st.integers(0, 100),
        seed=st.integers(0, 2**62),
    ),
    prompt_lookup=st.builds(LayerSettings, enabled=st.booleans(), max_draft_tokens=counts),
    suffix=st.builds(LayerSettings, enabled=st.booleans(), max_draft_tokens=counts),
    draft_model=st.builds(DraftModelSettings, p_min=st.none() | st.floats(0, 1), top_k=counts),
)


@given(settings)
def test_what_was_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, wanted: Settings) -> None:
    path = tmp_path_factory.getbasetemp() / "settings.toml"
    write_settings(path, wanted, note="of a property test\n\nand two lines more")
    assert read_settings(path) == wanted
    assert path.read_text().startswith("# of a property test\n#\n# and two lines more\n")


def test_what_is_left_out_keeps_its_default(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(
        '[driver]\npolicy = "first-match"\nfirst_match_cost = 1\n[layers.suffix]\nenabled = false\n'
    )
    read = read_settings(path)
    assert read == replace(
        Settings(),
        driver=DriverConfig(policy=Policy.FIRST_MATCH, first_match_cost=1.0),
        suffix=LayerSettings(enabled=False),
    )
    path.write_text("")
    assert read_settings(path) == Settings()


def test_every_setting_can_be_written(tmp_path: Path) -> None:
    """A field that is added to the driver's settings is in the file too, or this says that it is not."""
    path = tmp_path / "s.toml"
    full = Settings(
        driver=DriverConfig(model_class=ModelClass.MOE),
        target=TargetSettings(1, 1, 1, flash_attention=True, gpu_layers=2, main_gpu=1),
        draft_model=DraftModelSettings(p_min=0.3),
    )
    write_settings(path, full)
    written = path.read_text()
    # not both: llama.cpp uses one or the other
    write_settings(path, Settings(target=TargetSettings(gpu_layers=-1, tensor_split=(3.0, 1.5))))
    written += path.read_text()
    assert read_settings(path).target.tensor_split == (3.0, 1.5)
    for table in (full.driver, full.target, full.prompt_lookup, full.draft_model):
        for each in fields(table):
            assert f"\n{each.name} = " in written


@pytest.mark.parametrize(
    ("text", "key", "expected", "got"),
    [
        ('[driver]\nk_start = "12"', "driver.k_start", "integer", "'12'"),
        ("[driver]\nk_start = true", "driver.k_start", "integer", "True"),
        ("[driver]\nk = 3", "driver.k", "k_start", "k"),
        ('[driver]\npolicy = "best"', "driver.policy", "'expected-gain' or 'first-match'", "'best'"),
        ("[driver]\nk_start = 30", "driver.k_start", "k_min <= k_start <= k_max", "30"),
        ("[driver]\nmax_draft_tokens = 0", "driver.max_draft_tokens", "an int >= 1", "0"),
        ("[target]\nthreads = 0", "target.threads", ">= 1", "0"),
        ("[target]\nthreads = 1.5", "target.threads", "integer", "1.5"),
        ("[target]\nflash_attention = 1", "target.flash_attention", "boolean", "1"),
        ('[target]\nkv_type = "q5_0"', "target.kv_type", "f32 or f16 or q8_0 or q4_0", "q5_0"),
        ('[target]\nkv_type = "q8_0"\nflash_attention = false', "target.flash_attention", "", "False"),
        ("[target]\ngpu_layers = -2", "target.gpu_layers", "an int >= -1", "-2"),
        ("[target]\nmain_gpu = 0", "target.main_gpu", "without gpu_layers", "0"),
        ("[target]\ngpu_layers = 9\ntensor_split = [0.0]", "target.tensor_split", "proportion > 0", "(0.0,)"),
        ("[target]\ntensor_split = [1, true]", "target.tensor_split", "number", "True"),
        ("[target]\nexperts_used = 0", "target.experts_used", ">= 1", "0"),
        ("[target]\nmax_width = 600", "target.max_width", "batch_size", "600"),
        ("[sampling]\ntemperature = nan", "sampling.temperature", "a finite number", "nan"),
        ("[sampling]\ntop_p = 2.0", "sampling.top_p", "top_p", "2.0"),
        ("[layers.suffix]\nmax_draft_tokens = 0", "layers.suffix.max_draft_tokens", ">= 1", "0"),
        ("[layers.draft-model]\np_min = 2", "layers.draft-model.p_min", "in 0 .. 1", "2"),
        ("[layers.suffixes]", "layers.suffixes", "prompt-lookup, suffix, draft-model", "suffixes"),
        ("layers = 3", "layers", "a table, as in [layers]", "3"),
        ("[layers]\nsuffix = true", "layers.suffix", "a table", "True"),
        ("drivers = 3", "drivers", "driver, target", "drivers"),
        ("[driver", "TOML", "", "']'"),
        ("\xff", "TOML", "", "0xff"),
    ],
)
def test_errors_name_the_key(tmp_path: Path, text: str, key: str, expected: str, got: str) -> None:
    path = tmp_path / "s.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidConfigError) as caught:
        read_settings(path)
    assert str(path) in caught.value.message
    assert key in caught.value.message
    assert expected in str(caught.value)
    assert got in str(caught.value.got)


def test_files_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="No such file"):
        read_settings(tmp_path / "none.toml")
    with pytest.raises(InvalidConfigError, match="No such file"):
        write_settings(tmp_path / "none" / "s.toml", Settings())
    assert list(tmp_path.iterdir()) == []

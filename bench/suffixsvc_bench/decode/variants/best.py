"""Selection of the fastest driver setting, and its settings file for `suffixsvc generate` and `serve`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from suffixsvc_bench.decode.figures import ratio_against, ratio_of
from suffixsvc_bench.decode.variants.variants import Setting
from suffixsvc_bench.report.statistics import geometric_mean
from suffixsvc_bench.speculation.model_fixture import FixtureOptions
from suffixsvc_bench.speculation.paired import Pair
from suffixsvc_driver.profile.settings_file import (
    DraftModelSettings,
    LayerSettings,
    Settings,
    TargetSettings,
    write_settings,
)
from suffixsvc_driver.settings.driver_config import LayerKind


@dataclass(frozen=True, slots=True)
class Best:
    """The selected setting.

    Attributes:
        mean: geometric mean of its speedups over plain decoding, over the workloads.
    """

    setting: Setting
    mean: float

    def __str__(self) -> str:
        return f"{self.setting.name}: {self.mean:.2f} times plain decoding, geometric mean over the workloads"


def best_of(
    pairs: Mapping[str, Mapping[str, Sequence[Pair]]], settings: Mapping[str, Setting]
) -> Best | None:
    """The first setting, unless another one was faster on the same answers with significance.

    "With significance" means that the 95 % interval over all calls is above 1.

    Args:
        pairs: by workload and variant.
        settings: by variant; settings without layers, and variants that are no settings, are ignored.

    Returns:
        None if no setting was measured.
    """
    means: dict[str, float] = {}
    calls: dict[str, list[Pair]] = {}
    for name, setting in settings.items():
        measured = [variants[name] for variants in pairs.values() if variants.get(name)]
        mean = geometric_mean([ratio_of(each).value for each in measured])
        if setting.layers and mean > 0.0:
            means[name], calls[name] = mean, [pair for each in measured for pair in each]
    if not means:
        return None
    best = next(iter(means))
    for name in sorted(means, key=means.__getitem__, reverse=True):
        if name != best and ratio_against(calls[name], calls[best]).low > 1.0:
            best = name
    return Best(settings[best], means[best])


def write_best(file: Path, best: Best, fixture: FixtureOptions) -> None:
    """Write the setting with a comment on its origin.

    Raises:
        OSError: the file cannot be written.
    """
    setting = best.setting
    settings = Settings(
        driver=setting.config,
        target=TargetSettings(
            threads=fixture.threads,
            max_width=fixture.max_width,
            experts_used=fixture.experts,
            kv_type=fixture.kv_type,
            gpu_layers=fixture.offload.gpu_layers,
            main_gpu=fixture.offload.main_gpu,
            tensor_split=fixture.offload.tensor_split,
        ),
        sampling=setting.sampling,
        prompt_lookup=LayerSettings(enabled=LayerKind.PROMPT_LOOKUP in setting.layers),
        suffix=LayerSettings(enabled=LayerKind.SUFFIX in setting.layers),
        draft_model=DraftModelSettings(
            enabled=LayerKind.DRAFT_MODEL in setting.layers and fixture.draft is not None
        ),
    )
    write_settings(file, settings, note=f"{best} of `suffixsvc bench decode` on {fixture.target.name}")

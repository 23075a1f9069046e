"""The best of the settings that were compared, as a file that `suffixsvc generate` and `serve` read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from suffixsvc_driver.config import LayerKind
from suffixsvc_driver.settings_file import (
    DraftModelSettings,
    LayerSettings,
    Settings,
    TargetSettings,
    write_settings,
)

from suffixsvc_bench.decode.figures import Pair, against, ratio_of
from suffixsvc_bench.decode.rig import RigOptions
from suffixsvc_bench.decode.variants import Setting
from suffixsvc_bench.replay.compare import geometric_mean

__all__ = ["Best", "best_of", "write_best"]


@dataclass(frozen=True, slots=True)
class Best:
    """The setting to take.

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
    """The first setting, unless another one was faster on the same answers and not by chance: by the interval
    over all calls. None where none was measured.

    Args:
        pairs: by workload and way.
        settings: by way; those that ask no layer, and ways that are no settings, are left out.
    """
    means = {name: _mean(pairs, name) for name, setting in settings.items() if setting.layers}
    names = [name for name, mean in means.items() if mean > 0.0]
    if not names:
        return None
    best = names[0]
    for name in sorted(names, key=means.__getitem__, reverse=True):
        if name != best and against(_all(pairs, name), _all(pairs, best)).low > 1.0:
            best = name
    return Best(settings[best], means[best])


def _all(pairs: Mapping[str, Mapping[str, Sequence[Pair]]], name: str) -> list[Pair]:
    return [pair for ways in pairs.values() for pair in ways[name]]


def _mean(pairs: Mapping[str, Mapping[str, Sequence[Pair]]], name: str) -> float:
    """0 where nothing was measured."""
    speedups = [ratio_of(ways[name]).value for ways in pairs.values() if ways.get(name)]
    return geometric_mean(speedups) if speedups and min(speedups) > 0 else 0.0


def write_best(file: Path, best: Best, rig: RigOptions) -> None:
    """Write it, with a comment that says where it comes from.

    Raises:
        OSError: the disk.
    """
    setting = best.setting
    kept = Settings(
        driver=setting.config,
        target=TargetSettings(threads=rig.threads, max_width=rig.max_width, experts_used=rig.experts),
        sampling=setting.sampling,
        prompt_lookup=LayerSettings(enabled=LayerKind.PROMPT_LOOKUP in setting.layers),
        suffix=LayerSettings(enabled=LayerKind.SUFFIX in setting.layers),
        draft_model=DraftModelSettings(
            enabled=LayerKind.DRAFT_MODEL in setting.layers and rig.draft is not None
        ),
    )
    write_settings(file, kept, note=f"{best} of `suffixsvc bench decode` on {rig.target.name}")

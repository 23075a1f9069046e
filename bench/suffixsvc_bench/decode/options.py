"""What ``suffixsvc bench decode`` compares, looked at before anything is measured: that takes minutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suffixsvc_driver.config import Controller, LayerKind, Policy
from suffixsvc_driver.model_class import ModelClass
from suffixsvc_driver.sampling import Sampling
from suffixsvc_driver.targets.experts import override_experts
from suffixsvc_driver.targets.gguf_check import check_gguf

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.decode.jobs import check_workloads
from suffixsvc_bench.decode.llama_server import MODES
from suffixsvc_bench.decode.peers import check_peers
from suffixsvc_bench.decode.priced import Prices
from suffixsvc_bench.decode.rig import RigOptions
from suffixsvc_bench.decode.variants import Setting, settings_for

__all__ = ["DecodeOptions"]


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """What to compare. See ``suffixsvc bench decode --help``.

    Attributes:
        experts: of a mixture of experts: every number is a target of its own; None: as the file says.
    """

    rig: RigOptions
    workloads: Sequence[str]
    calls: int
    rounds: int
    policies: Sequence[str] = ("expected-gain",)
    ks: Sequence[int] = ()
    layers: Sequence[str] = ("all",)
    temperatures: Sequence[float] = (0.0,)
    max_tokens: int = 160
    experts: Sequence[int | None] = (None,)
    log: Path | None = None
    files: Sequence[Path] = ()
    prepared: Path | None = None
    llama_bin: Path | None = None
    llama_modes: Sequence[str] = tuple(MODES)
    llama_programs: bool = False
    prices: Sequence[Prices] = ()

    def as_dict(self) -> dict[str, Any]:
        """For the command that asks for the same again; files by their names."""
        peers = self.llama_bin is not None
        return {
            "target": self.rig.target.name,
            "draft": self.rig.draft.name if self.rig.draft else None,
            "threads": self.rig.threads,
            "context": self.rig.context,
            "max_width": self.rig.max_width,
            "experts": [experts for experts in self.experts if experts is not None],
            "workloads": list(self.workloads),
            "calls": self.calls,
            "rounds": self.rounds,
            "policies": list(self.policies),
            "ks": list(self.ks) if Controller.FIXED in self.policies else [],
            "layers": list(self.layers),
            "temperatures": list(self.temperatures),
            "max_tokens": self.max_tokens,
            "log": self.log.name if self.log else None,
            "files": [file.name for file in self.files],
            "llama_bin": self.llama_bin.name if self.llama_bin else None,
            "llama_modes": list(self.llama_modes) if peers else [],
            "llama_programs": peers and self.llama_programs,
            "prices": [prices.name for prices in self.prices],
        }

    def check(self) -> None:
        """Whether this can be run.

        Raises:
            InvalidInputError, InvalidConfigError: what was asked for makes no sense, or is not there.
        """
        _some("--temperature", self.temperatures)
        check_workloads(self.workloads, self.log, self.files)
        _some("--experts", self.experts)
        header = check_gguf(self.rig.target)
        for experts in self.experts:
            if experts is not None:
                override_experts(header, self.rig.target.name, experts)
        if Controller.FIXED in self.policies:
            _some("--k", self.ks)
        for temperature in self.temperatures:
            self.settings(Sampling(temperature=temperature), ModelClass.DENSE_SMALL)
        self._check_layers()
        if self.prices and 0.0 not in self.temperatures:
            raise InvalidInputError(
                "--price-with goes by greedy decoding",
                expected="0 among the temperatures",
                got=", ".join(f"{t:g}" for t in self.temperatures),
            )
        if self.llama_bin is not None:
            check_peers(
                self.llama_bin,
                self.llama_modes,
                programs=self.llama_programs,
                draft=self.rig.draft is not None,
            )

    def settings(self, sampling: Sampling, model_class: ModelClass) -> list[Setting]:
        """What is compared at one temperature."""
        return settings_for(
            policies=self.policies,
            ks=self.ks,
            layers=self.layers,
            sampling=sampling,
            model_class=model_class,
        )

    def _check_layers(self) -> None:
        if list(self.layers) != ["all"] and Policy.EXPECTED_GAIN not in self.policies:
            raise InvalidInputError(
                "--layers is for expected gain: rules ask all layers",
                expected="--policy expected-gain among the policies",
                got=", ".join(self.policies),
            )
        alone = [names for names in self.layers if LayerKind.DRAFT_MODEL in names.split("+")]
        if alone and self.rig.draft is None:
            raise InvalidInputError(
                "there is no draft model", expected="--draft MODEL", got=f"--layers {alone[0]}"
            )


def _some(option: str, values: Sequence[object]) -> None:
    if not values:
        raise InvalidInputError(f"{option} names nothing", expected="at least one", got="none")

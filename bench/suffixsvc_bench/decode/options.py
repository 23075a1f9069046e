"""Options of ``suffixsvc bench decode``, validated before the first measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.decode.pricing.supplied_costs import SuppliedCosts
from suffixsvc_bench.decode.variants.llama_server import MODES
from suffixsvc_bench.decode.variants.peers import check_peers
from suffixsvc_bench.decode.variants.variants import Setting, settings_for
from suffixsvc_bench.decode.workload.jobs import check_workloads
from suffixsvc_bench.speculation.model_fixture import FixtureOptions
from suffixsvc_driver.sampling.settings import Sampling
from suffixsvc_driver.settings.driver_config import Controller, LayerKind, Policy
from suffixsvc_driver.settings.model_class import ModelClass
from suffixsvc_driver.targets.llama.experts import override_experts
from suffixsvc_models.gguf_check import check_gguf

__all__ = ["DecodeOptions"]


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """What to compare. See ``suffixsvc bench decode --help``.

    Attributes:
        experts: expert counts of a mixture-of-experts model, each measured as a separate target; None: as in
            the file.
    """

    fixture: FixtureOptions
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
    supplied_costs: Sequence[SuppliedCosts] = ()

    def as_dict(self) -> dict[str, Any]:
        """Options as JSON-able data, from which the command can be reproduced; files by their names."""
        peers = self.llama_bin is not None
        return {
            "target": self.fixture.target.name,
            "draft": self.fixture.draft.name if self.fixture.draft else None,
            "threads": self.fixture.threads,
            "context": self.fixture.context,
            "max_width": self.fixture.max_width,
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
            "prices": [costs.name for costs in self.supplied_costs],
        }

    def check(self) -> None:
        """Validate the options and the presence of their files.

        Raises:
            InvalidInputError, InvalidConfigError: an option is invalid, or a file does not exist.
        """
        _require_values("--temperature", self.temperatures)
        check_workloads(self.workloads, self.log, self.files)
        _require_values("--experts", self.experts)
        header = check_gguf(self.fixture.target)
        for experts in self.experts:
            if experts is not None:
                override_experts(header, self.fixture.target.name, experts)
        if Controller.FIXED in self.policies:
            _require_values("--k", self.ks)
        for temperature in self.temperatures:
            self.settings(Sampling(temperature=temperature), ModelClass.DENSE_SMALL)
        self._check_layers()
        if self.supplied_costs and 0.0 not in self.temperatures:
            raise InvalidInputError(
                "--temperature must include 0 with --price-with",
                got=", ".join(f"{t:g}" for t in self.temperatures),
            )
        if self.llama_bin is not None:
            check_peers(
                self.llama_bin,
                self.llama_modes,
                programs=self.llama_programs,
                draft=self.fixture.draft is not None,
            )

    def settings(self, sampling: Sampling, model_class: ModelClass) -> list[Setting]:
        """Driver settings that are compared at one temperature."""
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
                "--policy must include expected-gain with --layers",
                got=", ".join(self.policies),
            )
        with_model = [names for names in self.layers if LayerKind.DRAFT_MODEL in names.split("+")]
        if with_model and self.fixture.draft is None:
            raise InvalidInputError(
                "--draft must be given with the layer draft-model", got=f"--layers {with_model[0]}"
            )


def _require_values(option: str, values: Sequence[object]) -> None:
    if not values:
        raise InvalidInputError(f"{option} must have at least one value")

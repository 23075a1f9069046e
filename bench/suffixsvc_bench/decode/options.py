"""Options of ``suffixsvc bench decode``."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc.verb_options import option
from suffixsvc_models.load_options import LoadOptions

if TYPE_CHECKING:
    from suffixsvc_bench.decode.workload.jobs import WorkloadChoice
    from suffixsvc_bench.speculation.model_fixture import FixtureOptions

#: target and draft model
ModelPair = tuple[Path, Path | None]
#: fields that do not affect results
_NOT_STORED: Final = ("again", "prepared", "best", "report", "as_json")


def _model(name: str) -> Path:
    """File of a GGUF or of a registry name."""
    import suffixsvc_models as models  # noqa: PLC0415 - --help does not need it

    return models.resolve(name)


def _numbers(option_name: str, kind: Callable[[str], Any], text: str) -> tuple[Any, ...]:
    try:
        return tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise InvalidInputError(
            f"{option_name} must be a list of numbers", expected="e.g. 4,8,16", got=repr(text)
        ) from None


def _experts(text: str) -> tuple[int | None, ...]:
    return _numbers("--experts", int, text) if text else (None,)


@dataclass(frozen=True, slots=True)
class DecodeOptions(LoadOptions):
    """The options of the verb.

    Attributes:
        targets, drafts: every pair of them is measured; without drafts, every target.
        experts: expert counts of a mixture-of-experts model, each measured as a separate target; None: as in
            the file.
    """

    targets: tuple[Path, ...] = option(
        ("qwen2.5-coder-1.5b",),
        "--target",
        parse=_model,
        help="Target model: a GGUF, or a name of `suffixsvc models`. Repeatable: every target is measured "
        "with every draft model. Default: qwen2.5-coder-1.5b.",
    )
    drafts: tuple[Path, ...] = option(
        (),
        "--draft",
        parse=_model,
        help="Draft model: a GGUF, or a name of `suffixsvc models`. Repeatable. Default: none.",
    )
    workloads: tuple[str, ...] = option(
        (),
        "--workload",
        help="Workload: sql, json, python, log, files, chat, edit, repeat, summary, document-qa or "
        "conversation. Repeatable. Default: all; log and files only with --log and --file.",
    )
    log: Path | None = option(None, help="Recorded log for the workload log.")
    files: tuple[Path, ...] = option((), "--file", help="Prompt for the workload files. Repeatable.")
    calls: int = option(12, min=1, help="Maximum number of calls of each workload.")
    rounds: int = option(2, min=1, help="Repetitions of each workload.")
    policies: tuple[str, ...] = option(
        ("expected-gain",),
        "--policy",
        help="Variant: expected-gain, adaptive-k, content-k, class-k, fixed-k, or plain (against itself, "
        "which shows the resolution of the run). Repeatable. Default: expected-gain.",
    )
    ks: tuple[int, ...] = option(
        "4,8,16,24,32,48",
        "--k",
        parse=partial(_numbers, "--k", int),
        help="Comma-separated values of K for fixed-k.",
    )
    layers: tuple[str, ...] = option(
        ("all",),
        help="Layers for expected-gain and fixed-k: all, or kinds joined by + (prompt-lookup+suffix). "
        "Repeatable.",
    )
    temperatures: tuple[float, ...] = option(
        "0",
        "--temperature",
        parse=partial(_numbers, "--temperature", float),
        help="Comma-separated temperatures.",
    )
    threads: int | None = option(None, min=1, help="Threads. Default: one per physical core.")
    context: int = option(2048, min=256, help="Context size in tokens.")
    max_width: int = option(32, min=2, help="Maximum width of a step, in tokens.")
    max_tokens: int = option(160, min=8, help="Maximum tokens of an answer of log and chat.")
    experts: tuple[int | None, ...] = option(
        "",
        parse=_experts,
        help="Comma-separated numbers of experts per token, for mixture-of-experts models.",
    )
    again: bool = option(False, "--again", help="Measure the cost curve even if one is stored.")
    prepared: Path | None = option(
        None,
        help="File that stores the prepared answers for the next run; with several targets, one for each, "
        "with its name appended.",
    )
    llama_bin: Path | None = option(
        None, help="Folder with llama.cpp's own programs, to run in the same pairs."
    )
    llama_modes: tuple[str, ...] = option(
        (), "--llama-mode", help="Mode of llama-server. Repeatable. Default: all."
    )
    llama_programs: bool = option(
        False, "--llama-programs", help="Also run llama-lookup and llama-speculative."
    )
    prices: tuple[str, ...] = option(
        (),
        "--price-with",
        metavar="FILE.json",
        help="Speedup of the same drafts at other costs: a file, or gpu or 96-cores. These two are assumed, "
        "not measured; 96-cores is fitted to a reported speedup. Repeatable.",
    )
    best: Path | None = option(
        None,
        metavar="FILE.toml",
        help="Write the best setting to this file, for generate and serve: the first one, unless another was "
        "faster by the 95 % interval over all calls of the first temperature.",
    )
    report: Path | None = option(
        None, help="Write JSON with every pair to this file, updated after each workload."
    )
    as_json: bool = option(False, "--json", help="Print JSON.")

    @property
    def pairs(self) -> list[ModelPair]:
        """The targets, each with every draft model."""
        return [(target, draft) for target in self.targets for draft in self.drafts or (None,)]

    def prepared_for(self, target: Path) -> Path | None:
        """File of the prepared answers of a target; None stores nothing."""
        file = self.prepared
        if file is None or len(self.targets) == 1:
            return file
        return file.with_name(f"{file.stem}-{target.stem}{file.suffix}")

    def fixture(self, experts: int | None = None, pair: ModelPair | None = None) -> FixtureOptions:
        """Options of the fixture with this number of experts and this pair.

        Args:
            experts: None: as in the model's file.
            pair: None: the first one.
        """
        from suffixsvc_bench.speculation.model_fixture import FixtureOptions  # noqa: PLC0415 - loads the driver
        from suffixsvc_driver.targets.llama.machine import usable_cores  # noqa: PLC0415 - as above
        from suffixsvc_driver.targets.llama.offload import Offload  # noqa: PLC0415 - as above

        target, draft = pair or self.pairs[0]
        return FixtureOptions(
            target,
            draft,
            self.threads or usable_cores(),
            self.context,
            self.max_width,
            experts,
            self.again,
            offload=Offload.of(self),
            kv_type=self.kv_type_or_default,
        )

    @property
    def workload_choice(self) -> WorkloadChoice:
        """The workloads to load."""
        from suffixsvc_bench.decode.workload.jobs import WorkloadChoice  # noqa: PLC0415 - loads the driver

        return WorkloadChoice(self.workloads, self.calls, self.max_tokens, self.context, self.log, self.files)

    def as_dict(self) -> dict[str, Any]:
        """Options as JSON-able data, from which the command can be reproduced; files by their names."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NOT_STORED}
        plain: dict[str, Any] = json.loads(json.dumps(values, default=lambda file: file.name))
        peers = self.llama_bin is not None
        return plain | {
            "threads": self.fixture().threads,
            "experts": [experts for experts in self.experts if experts is not None],
            "ks": plain["ks"] if "fixed-k" in self.policies else [],
            "llama_modes": plain["llama_modes"] if peers else [],
            "llama_programs": peers and self.llama_programs,
            "prices": [Path(name).stem for name in self.prices],
        }

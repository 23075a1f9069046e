"""Options of ``suffixsvc bench http``."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc.verb_options import option
from suffixsvc_models.load_options import LoadOptions

if TYPE_CHECKING:
    from suffixsvc_bench.decode.workload.jobs import WorkloadChoice
    from suffixsvc_bench.speculation.model_fixture import FixtureOptions

#: parts of a run, in order
PARTS: Final = ("one-client", "several-clients", "conversation", "schema")
#: fields that do not affect results
_NOT_STORED: Final = ("prepared", "report", "as_json")


def _model(name: str) -> Path | None:
    """File of a GGUF or of a registry name; "" = none."""
    import suffixsvc_models as models  # noqa: PLC0415 - --help does not need it

    return models.resolve(name) if name else None


@dataclass(frozen=True, slots=True)
class HttpOptions(LoadOptions):
    """The options of the verb. Those of loading a model hold for every server."""

    target: Path = option(
        "qwen2.5-coder-1.5b", parse=_model, help="Model: a GGUF, or a name of `suffixsvc models`."
    )
    llama_bin: Path | None = option(
        None,
        envvar="LLAMA_CPP_BIN",
        metavar="FOLDER",
        help="Folder with llama-server, which tools/llama_tools.sh builds. Without it, only this server is "
        "measured.",
    )
    llama_modes: tuple[str, ...] = option(
        (),
        "--llama-mode",
        help="Mode of llama-server beside plain: ngram-mod, ngram-map-k, ngram-cache, draft 3 or draft 8. "
        "Repeatable. Default: all; those with a draft model only with --draft.",
    )
    draft: Path | None = option(
        "",
        parse=_model,
        help="Draft model: a GGUF, or a name of `suffixsvc models`. Adds this server with it, and modes of "
        "llama-server.",
    )
    parts: tuple[str, ...] = option(
        (),
        "--part",
        help=f"Part of the run: {', '.join(PARTS)}. Repeatable. Default: all.",
    )
    workloads: tuple[str, ...] = option(
        (),
        "--workload",
        help="Workload of `suffixsvc bench decode`. Repeatable. Default: all; log and files only with --log "
        "and --file.",
    )
    log: Path | None = option(None, help="Recorded log for the workload log.")
    files: tuple[Path, ...] = option((), "--file", help="Prompt for the workload files. Repeatable.")
    calls: int = option(8, min=1, help="Maximum number of calls of each workload, of groups and of schemas.")
    turns: int = option(20, min=2, help="Turns of the conversation.")
    rounds: int = option(1, min=1, help="Repetitions, each with new servers.")
    parallel: int = option(4, min=1, max=64, help="Lanes of every server, and clients of several-clients.")
    threads: int | None = option(None, min=1, help="Threads. Default: one per physical core.")
    context: int = option(4096, min=256, help="Context size of a lane in tokens.")
    max_tokens: int = option(
        160, min=8, help="Maximum tokens of an answer of workloads without a limit of their own."
    )
    prepared: Path | None = option(
        None, help="File that stores the prepared answers for the next run; `bench decode` reads the same."
    )
    report: Path | None = option(
        None, help="Write JSON with every answer's times to this file, updated after each workload."
    )
    as_json: bool = option(False, "--json", help="Print JSON.")

    def fixture(self) -> FixtureOptions:
        """Models, threads and context."""
        from suffixsvc_bench.speculation.model_fixture import FixtureOptions  # noqa: PLC0415 - loads the driver
        from suffixsvc_driver.targets.llama.machine import usable_cores  # noqa: PLC0415 - as above
        from suffixsvc_driver.targets.llama.offload import Offload  # noqa: PLC0415 - as above

        width = max(32, 4 * self.parallel)  # as `suffixsvc openai` has it
        threads = self.threads or usable_cores()
        return FixtureOptions(
            self.target,
            self.draft,
            threads,
            self.context,
            width,
            slots=self.parallel,
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
        return plain | {
            "threads": self.fixture().threads,
            "llama_modes": plain["llama_modes"] if self.llama_bin is not None else [],
        }


def check_options(options: HttpOptions) -> None:
    """Validate the options and the presence of their files before anything starts.

    Raises:
        InvalidInputError: an option is invalid, or a file does not exist.
    """
    from suffixsvc_bench.decode.checks import require_fit  # noqa: PLC0415 - loads the driver
    from suffixsvc_bench.decode.variants.peers import check_peers  # noqa: PLC0415 - loads the driver
    from suffixsvc_bench.decode.workload.jobs import check_workloads  # noqa: PLC0415 - as above

    for part in options.parts:
        if part not in PARTS:
            raise InvalidInputError("--part must be known", expected=", ".join(PARTS), got=repr(part))
    check_workloads(options.workloads, options.log, options.files)
    if options.draft is not None:
        require_fit(options.target, options.draft)
    if options.llama_bin is not None:
        check_peers(options.llama_bin, options.llama_modes, programs=False, draft=options.draft is not None)

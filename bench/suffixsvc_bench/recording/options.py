"""Options of ``suffixsvc bench record``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from suffixsvc.verb_options import argument, option
from suffixsvc_models.load_options import LoadOptions


@dataclass(frozen=True, slots=True)
class RecordingOptions(LoadOptions):
    """The options of the verb; a recording is opened with the file of the model."""

    workloads: tuple[str, ...] = argument(metavar="WORKLOAD...", help="Workloads: sql, json, code.")
    out_dir: Path = option(
        metavar="DIR", help="Folder of the files WORKLOAD.jsonl, which are created or continued."
    )
    model: str = option(
        "qwen2.5-coder-1.5b", metavar="MODEL", help="Model: a GGUF or a name of `models list`."
    )
    threads: int | None = option(None, min=1, help="Threads of the model. Default: one per physical core.")
    width: int = option(32, min=1, max=128, help="Concurrent answers; one step computes a token of each.")
    limit: int = option(0, min=0, help="Number of tasks of each workload; 0 = all.")
    as_json: bool = option(False, "--json", help="Print the summary as JSON.")

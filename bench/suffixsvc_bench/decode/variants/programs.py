"""llama.cpp's one-shot programs (one prompt per process) as whole variants, measured by what they print."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from suffixsvc.errors import ModelError
from suffixsvc_bench.decode.workload.jobs import AnsweredJob, Job
from suffixsvc_bench.speculation.model_fixture import FixtureOptions
from suffixsvc_bench.speculation.paired import Outcome
from suffixsvc_driver.targets.llama.model import LlamaModel

_RUN_SECONDS: Final = 600.0
_COUNT: Final = re.compile(r"\b(n_predict|n_drafted|n_accept)\s*=\s*(\d+)")
_DECODED: Final = re.compile(
    r"decoded\s+(\d+) tokens in\s+([\d.]+|nan|inf) seconds, speed:\s+(-?[\d.]+|-?nan|-?inf) t/s"
)


def parse_statistics(output: str) -> Outcome:
    """Parse the final statistics of llama-lookup, llama-speculative and llama-speculative-simple.

    Values that are nan or inf (no draft, or no token written) count as zero.

    Raises:
        ModelError: the statistics are missing.
    """
    decoded = _DECODED.search(output)
    if decoded is None:
        raise ModelError(
            "the output of the program must contain statistics",
            expected="decoded .. tokens",
            got=output[-200:],
        )
    counts = {name: int(number) for name, number in _COUNT.findall(output)}
    seconds = decoded[2]
    return Outcome(
        int(decoded[1]),
        0.0 if seconds in ("nan", "inf") else float(seconds),
        drafted=counts.get("n_drafted", 0),
        accepted=counts.get("n_accept", 0),
    )


class ProgramVariant:
    """One of the programs, run once for each job; loading the model is not part of its figures."""

    def __init__(self, program: Path, model: LlamaModel, options: FixtureOptions) -> None:
        self.name = program.name
        self._model = model
        self._command = [str(program), "-m", str(model.path), "-t", str(options.threads)]
        self._command += ["-c", str(options.context), "--temp", "0"]
        drafting = options.draft is not None and "speculative" in self.name
        self._command += ["-md", str(options.draft)] if drafting else []
        self._command += options.llama_arguments(drafting=drafting)

    def begin(self, workload: str, warmup: Sequence[AnsweredJob], round_number: int) -> None:
        """Nothing to do: every job is a new process."""

    def answer(self, job: Job) -> Outcome:
        """Run the program on the job's prompt.

        Raises:
            ModelError: the program failed or printed no statistics.
        """
        text = self._model.detokenize(job.prompt_ids, special=True)
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as prompt:
            prompt.write(text)
            prompt.flush()
            command = [*self._command, "-f", prompt.name, "-n", str(job.max_tokens)]
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", check=False, timeout=_RUN_SECONDS
            )
        if done.returncode != 0:
            raise ModelError(f"{self.name} failed", expected="exit code 0", got=done.stderr[-300:])
        return parse_statistics(done.stderr + done.stdout)

"""llama.cpp's own programs, for ``make interop``."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

#: takes (program, what was compared, what came out)
Note = Callable[[str, str, str], None]


@dataclass(frozen=True)
class Tools:
    """llama.cpp's programs, and the model they are given."""

    folder: Path
    model: Path

    def run(self, program: str, *args: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.folder / program), *map(str, args)],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},  # no debugger where it aborts
            **options,
        )

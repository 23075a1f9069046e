"""Files of published runs: segments in a folder of their own, without a manifest.

They are derived, and belong to one run of the process: what an earlier one left is removed at the start.

DIR/published/
  0c19..e5-7-7-0.seg                          xxh3 of the namespace's path, a number (segment_files.py)
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from pathlib import Path
from typing import Final

from suffixsvc.engine.sealing import segment_files
from suffixsvc.errors import StoreError
from suffixsvc.store.files.folder import disk_error

#: in the data folder
FOLDER: Final = "published"


class PublishedFiles:
    """The files of one cache.

    Args:
        data_folder: None for a cache in memory, whose files are in a temporary folder.

    Raises:
        StoreError: the folder cannot be read.
    """

    def __init__(self, data_folder: Path | None) -> None:
        self._numbers = itertools.count()
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._folder = None if data_folder is None else data_folder / FOLDER
        if self._folder is not None:
            segment_files.sweep(self._folder, ())

    @property
    def folder(self) -> Path:
        """The folder of the files; a temporary one is made on first use. StoreError: it cannot be."""
        if self._folder is None:
            try:
                self._temporary = tempfile.TemporaryDirectory(prefix="suffixsvc-published-")
            except OSError as error:
                raise disk_error(error, tempfile.gettempdir(), "creating a folder in") from error
            self._folder = Path(self._temporary.name)
        return self._folder

    def new_path(self, namespace: str) -> Path:
        """A path for the runs of a namespace, which no file of this process had before."""
        number = next(self._numbers)
        return segment_files.new_path(self.folder, namespace, number, number)

    def remove(self, path: Path) -> None:
        """Delete a file."""
        segment_files.remove(path)

    def close(self) -> None:
        """Delete all files. Idempotent."""
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = self._folder = None
        elif self._folder is not None:
            with contextlib.suppress(StoreError):  # the next start removes them
                segment_files.sweep(self._folder, ())

"""A service in this process that tests stop, kill and restore, on one address and one folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from suffixsvc import Limits, SuffixCache
from suffixsvc.errors import ServiceUnavailableError
from suffixsvc.policies import Policies
from suffixsvc.service.listeners.listen import parse_address
from suffixsvc.service.server import SuffixServer

#: what a backup of a folder must have
_LOG_FILES = ("data.mdb", "meta.journal")


class FaultyService:
    """The service; :attr:`cache` and :attr:`server` are those of its present run.

    Args: folder: has the data, the backup and the socket.
    """

    def __init__(self, folder: Path, limits: Limits, policies: Policies, lease_seconds: float = 15.0) -> None:
        self._limits, self._policies, self._lease = limits, policies, lease_seconds
        self.data, self._backup = folder / "data", folder / "backup"
        self.address = f"unix:{folder / 's.sock'}"
        self.running = False
        self.start()

    def start(self) -> None:
        self.cache = SuffixCache(self.data, limits=self._limits, policies=self._policies, background=False)
        self.server = SuffixServer(
            self.cache, [parse_address(self.address)], limits=self._limits, lease_seconds=self._lease
        )
        self.server.start()
        self.running = True

    def stop(self, *, killed: bool = False) -> None:
        """Stop; a killed one does not commit its live sessions."""
        if not self.running:
            return
        self.running = False
        if killed:
            self.server.handlers.sessions.drain = lambda: 0  # type: ignore[method-assign]
        self.server.drain()
        self.cache.check()
        self.cache.close()

    def empty(self) -> None:
        assert not self.running
        shutil.rmtree(self.data)

    def back_up(self) -> None:
        assert not self.running
        shutil.rmtree(self._backup, ignore_errors=True)
        self._backup.mkdir()
        self._copy(self.data, self._backup)

    def restore(self) -> None:
        """The log of the backup, beside what the folder has of segments."""
        assert not self.running
        self._copy(self._backup, self.data)

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        for name in _LOG_FILES:
            (target / name).unlink(missing_ok=True)
            if (source / name).exists():  # a log without a commit has no journal
                shutil.copy(source / name, target / name)

    def cut(self) -> None:
        """End all streams."""
        for stream in list(self.server.handlers.followers._streams):
            stream.end(ServiceUnavailableError("cut by the test"))

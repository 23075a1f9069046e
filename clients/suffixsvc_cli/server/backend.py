"""The service or data folder that a verb works on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from suffixsvc_cli.base.options import require_one_store

if TYPE_CHECKING:
    from suffixsvc import SuffixCache
    from suffixsvc_client import SuffixClient


@contextmanager
def opened_backend(server: str | None, data: Path | None) -> Iterator[SuffixClient | SuffixCache]:
    """Open the client of a service, or a data folder that no process has open.

    Raises:
        InvalidConfigError: both or neither is given, or the folder has no store.
        UnknownNamespaceError: of the block, with the remedy of an operator.
        StoreError: the folder cannot be used.
    """
    from suffixsvc.errors import UnknownNamespaceError

    require_one_store(server, data)
    try:
        with _opened(server, data) as backend:
            yield backend
    except UnknownNamespaceError as error:
        raise error.with_remedy(
            "`suffixsvc namespaces list` shows those that exist and that you have a right on: others look as "
            "if they did not exist."
        ) from None


@contextmanager
def _opened(server: str | None, data: Path | None) -> Iterator[SuffixClient | SuffixCache]:
    from suffixsvc.errors import InvalidConfigError

    if server is not None:
        from suffixsvc_client import SuffixClient

        with SuffixClient(server) as client:
            yield client
        return
    from suffixsvc import SuffixCache

    if data is None or not (data / "data.mdb").is_file():
        raise InvalidConfigError("--data must be a folder with a data.mdb", got=str(data))
    with SuffixCache(data, background=False) as cache:
        yield cache

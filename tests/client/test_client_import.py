"""Imports of the client: neither the native core nor the store is loaded."""

from __future__ import annotations

import json
import subprocess
import sys

FORBIDDEN = (
    "lmdb",
    "pydantic",
    "pygtrie",
    "suffixsvc.core",
    "suffixsvc.engine",
    "suffixsvc.index",
    "suffixsvc.store",
)
FORBIDDEN += ("suffixsvc.service", "tokenizers", "llama_cpp", "typer", "rich")


def modules_after(code: str) -> list[str]:
    out = subprocess.run(
        [sys.executable, "-c", f"{code}; import json, sys; print(json.dumps(sorted(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names: list[str] = json.loads(out)
    return names


def test_importing_the_client_loads_no_engine() -> None:
    loaded = modules_after("import suffixsvc_client, suffixsvc_client.text")
    assert "suffixsvc_client.protocol.procedures" in loaded
    assert [name for name in loaded if name.startswith(FORBIDDEN) or name.endswith("._ext")] == []


def test_using_the_client_loads_no_engine() -> None:
    loaded = modules_after(
        "from suffixsvc_client import SuffixClient; c = SuffixClient('unix:/nowhere/s.sock');"
        "s = c.namespace('a').open_session([1]); s.step([2]); s.close(commit=False); c.close()"
    )
    assert [name for name in loaded if name.startswith(FORBIDDEN) or name.endswith("._ext")] == []


def test_the_public_names() -> None:
    import suffixsvc_client

    assert suffixsvc_client.__all__ == [
        "AsyncClientNamespace",
        "AsyncClientSession",
        "AsyncSuffixClient",
        "AsyncTransport",
        "ClientConfig",
        "ClientNamespace",
        "ClientSession",
        "ClientStats",
        "EmptyReason",
        "ExportSummary",
        "ExportedFileSummary",
        "FollowerStats",
        "ServerInfo",
        "ServiceStats",
        "SuffixClient",
        "Transport",
    ]
    assert all(hasattr(suffixsvc_client, name) for name in suffixsvc_client.__all__)

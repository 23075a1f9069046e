"""``suffixsvc export`` where there is no room for what a service sends."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from suffixsvc_caches.building import LookupSpec
from suffixsvc_caches.exporting import ExportSource, export_lookup
from support.serving import serving, socket_dir
from support.small_disk import small_disk

from suffixsvc import SuffixCache
from suffixsvc.errors import StoreError, StoreFullError


def test_no_room_for_what_a_service_sends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ended with a traceback."""
    rng = np.random.default_rng(7)
    with (
        SuffixCache() as cache,
        socket_dir() as folder,
        serving(cache, f"unix:{folder}/s.sock") as (_, target),
    ):
        cache.namespace("a").add_output(rng.integers(0, 1 << 20, 20_000).astype(np.int32))
        source, wanted = ExportSource("a", server=target), LookupSpec(tmp_path / "s.bin")
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
        with pytest.raises(StoreError, match="TMPDIR"):
            export_lookup(source, wanted, None)
        # The service of this test has the same folder, and keeps twice as much there.
        with small_disk(tmp_path / "disk", 100_000) as disk:
            monkeypatch.setattr(tempfile, "tempdir", str(disk))
            with pytest.raises(StoreFullError):
                export_lookup(source, wanted, None)
            assert list(disk.iterdir()) == []
    assert not wanted.path.exists()

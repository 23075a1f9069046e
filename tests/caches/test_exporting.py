"""``suffixsvc export``: interrupts and a full disk."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffixsvc import SuffixCache
from suffixsvc.core.ngram_count import tally_files
from suffixsvc.errors import StoreError, StoreFullError
from suffixsvc_caches.building.lookup_caches import LookupSpec
from suffixsvc_caches.exporting import export_lookup
from support.serving import PATIENCE_S, serving, socket_dir
from support.small_disk import small_disk


def test_an_interrupt_ends_an_export_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt was handled only after the merge."""
    main = threading.main_thread().ident
    assert main is not None
    uncancelled = []
    with SuffixCache(tmp_path / "data") as cache:
        cache.namespace("a").add_output([1, 2, 3, 1, 2, 3])
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))

    def merge_without_end(*args: Any, **more: Any) -> None:
        assert threading.get_ident() != main  # calls of the core cannot be interrupted
        assert list(scratch.iterdir())
        signal.pthread_kill(main, signal.SIGINT)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            tally_files(*args, **more)
        uncancelled.append(True)

    monkeypatch.setattr("suffixsvc.engine.export.tally_files", merge_without_end)
    with pytest.raises(KeyboardInterrupt):
        export_lookup("a", tmp_path / "data", LookupSpec(tmp_path / "s.bin"))
    assert not uncancelled
    assert [path.name for path in tmp_path.iterdir() if path.name != "data"] == ["scratch"]
    assert list(scratch.iterdir()) == []


def test_a_full_disk_during_an_export_from_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both cases ended with a traceback."""
    rng = np.random.default_rng(7)
    with (
        SuffixCache() as cache,
        socket_dir() as folder,
        serving(cache, f"unix:{folder}/s.sock") as (_, target),
    ):
        cache.namespace("a").add_output(rng.integers(0, 1 << 20, 20_000).astype(np.int32))
        wanted = LookupSpec(tmp_path / "s.bin")
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
        with pytest.raises(StoreError, match="TMPDIR"):
            export_lookup("a", target, wanted)
        # The service of this test uses the same folder for twice as many bytes.
        with small_disk(tmp_path / "disk", 100_000) as disk:
            monkeypatch.setattr(tempfile, "tempdir", str(disk))
            with pytest.raises(StoreFullError):
                export_lookup("a", target, wanted)
            assert list(disk.iterdir()) == []
    assert not wanted.path.exists()

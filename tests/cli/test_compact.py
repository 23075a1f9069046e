"""``suffixsvc compact`` on real folders."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from suffixsvc import SuffixCache


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "suffixsvc_cli", "compact", *args], capture_output=True, text=True, check=False
    )


def fill(folder: Path) -> None:
    with SuffixCache(folder) as cache:
        for path in ("a", "b/c"):
            ids = [cache.namespace(path).add_output([1, 2, 3, i]) for i in range(3)]
            cache.namespace(path).delete(output_ids=[ids[1]])


def test_a_folder_is_sealed_and_opens_without_indexing_anything(tmp_path: Path) -> None:
    fill(tmp_path / "d")
    result = run(str(tmp_path / "d"), "--json", "--check")
    assert result.returncode == 0, result.stderr
    result_json = json.loads(result.stdout)
    assert (
        result_json["outputs"],
        result_json["tokens"],
        result_json["hot_tokens"],
        result_json["segments"],
    ) == (4, 16, 0, 2)
    with SuffixCache(tmp_path / "d") as cache:
        assert (cache.stats().hot_tokens, cache.stats().segment_bytes) == (0, result_json["segment_bytes"])
        cache.check()


def test_one_namespace_only(tmp_path: Path) -> None:
    fill(tmp_path / "d")
    result = run(str(tmp_path / "d"), "--namespace", "b/c", "--check")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("2 outputs, 8 tokens in 1 segments of ")
    with SuffixCache(tmp_path / "d") as cache:
        assert cache.namespace("a").stats().segments == 0


def test_other_folders_are_refused(tmp_path: Path) -> None:
    result = run(str(tmp_path / "nothing"))
    assert result.returncode == 2
    assert "data.mdb" in result.stderr
    assert not (tmp_path / "nothing").exists()


def test_a_folder_in_use_and_an_unknown_namespace_are_named(tmp_path: Path) -> None:
    fill(tmp_path / "d")
    assert "nowhere" in run(str(tmp_path / "d"), "--namespace", "nowhere").stderr
    with SuffixCache(tmp_path / "d"):
        assert "in use" in run(str(tmp_path / "d")).stderr

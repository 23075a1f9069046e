"""``suffixsvc namespaces``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from suffixsvc import SuffixCache


def suffixsvc(*arguments: str, verb: str = "namespaces") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "suffixsvc.cli", verb, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_namespaces_of_a_folder_are_listed_and_deleted(tmp_path: Path) -> None:
    """A mistyped path was answered by "Write to it first", and a list of none by nothing at all."""
    folder = tmp_path / "d"
    with SuffixCache(folder) as cache:
        for path in ("a", "a/b", "ab"):
            cache.namespace(path, "t").add_output([1, 2, 3])
    listed = suffixsvc("list", "a", "--data", str(folder), "--json")
    assert [each["path"] for each in json.loads(listed.stdout)] == ["a", "a/b"]
    deleted = suffixsvc("delete", "a", "--data", str(folder))
    assert (deleted.returncode, deleted.stdout) == (0, "1 outputs deleted\n")
    again = suffixsvc("delete", "a", "--data", str(folder))
    assert again.returncode == 2
    assert "namespace 'a' must exist" in again.stderr
    assert "`suffixsvc namespaces list` shows those that are there" in again.stderr
    assert suffixsvc("list", "--data", str(folder)).stdout == "a/b\tt\nab\tt\n"
    below = suffixsvc("list", "nope", "--data", str(folder))
    assert (below.returncode, below.stdout) == (0, "")
    assert below.stderr == "no namespace 'nope', and none below it\n"
    as_json = suffixsvc("list", "nope", "--data", str(folder), "--json")
    assert (as_json.returncode, as_json.stdout, as_json.stderr) == (0, "[]\n", "")
    static = str(tmp_path / "s.bin")
    exported = suffixsvc("nope", "--data", str(folder), "--lookup-static", static, verb="export")
    assert exported.returncode == 2
    assert "namespace 'nope' must exist" in exported.stderr
    assert "`suffixsvc namespaces list` shows" in exported.stderr
    neither = suffixsvc("list")
    assert neither.returncode == 2
    assert "one of --server and --data must be given" in neither.stderr

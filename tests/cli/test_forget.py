"""``suffixsvc forget``: selections by options, on a data folder and on a service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffixsvc import NewOutput, SuffixCache
from suffixsvc_cli import main
from support.stored import stored_outputs
from support.watching import watched

SECRET = [0x41434507 + 2 * n for n in range(40)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with two namespaces, two principals, labels and sessions; the first output is ann's secret."""
    folder = tmp_path / "data"
    with SuffixCache(folder, background=False) as cache:
        for path in ("a", "b"):
            rows = [(SECRET, "ann", "sql", "s1"), ([1, 2, 3], "bob", "sql", "s2"), ([4, 5], "", "code", "")]
            cache.namespace(path).add_outputs(
                [
                    NewOutput(
                        path,
                        np.asarray(text, np.int32),
                        (len(text),),
                        np.empty(0, np.int32),
                        labels={"agent": agent, "of": "x=y"},
                        principal=principal,
                        session_id=session,
                    )
                    for text, principal, agent, session in rows
                ]
            )
    return folder


def ids(folder: Path) -> list[int]:
    with SuffixCache(folder, background=False) as cache:
        return [row.output_id for path in ("a", "b") for row in stored_outputs(cache, path)]


def holds_secret(folder: Path) -> bool:
    raw = np.asarray(SECRET[3:6], "<i4").tobytes()
    return any(raw in path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (["--output", "1", "--output", "5", "--output", "99"], [2, 3, 4, 6]),
        (["--session", "s2"], [1, 3, 4, 6]),
        (["--label", "agent=sql", "--label", "of=x=y"], [3, 6]),
        (["--principal", "ann"], [2, 3, 5, 6]),
        (["--principal", "amn"], [1, 2, 3, 4, 5, 6]),
        (["--output", "1"], [2, 3, 4, 5, 6]),
        (["--principal", ""], [1, 2, 4, 5]),
        (["--namespace", "a"], [4, 5, 6]),
        (["--namespace", "a", "--principal", "bob"], [1, 3, 4, 5, 6]),
        (["--older-than", "1h"], [1, 2, 3, 4, 5, 6]),
        (["--older-than", "0"], []),
    ],
)
def test_options_select(
    data: Path, capsys: pytest.CaptureFixture[str], options: list[str], left: list[int]
) -> None:
    assert main(["forget", "--data", str(data), *options]) == 0
    out = capsys.readouterr().out
    deleted = 6 - len(left)
    assert out.startswith(f"{deleted} output{'s' * (deleted != 1)} deleted, 0 live sessions retracted")
    assert ("nothing matched the selection" in out) == (not deleted)
    assert ("when a service has opened the folder" in out) == bool(deleted)
    assert ids(data) == left


def test_from_disk_and_json(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert holds_secret(data)
    assert main(["forget", "--data", str(data), "--principal", "ann", "--from-disk", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "outputs": 2,
        "sessions": 0,
        "namespaces": ["a", "b"],
        "from_disk": True,
        "receipt": {"acknowledged": [], "silent": []},
    }
    assert not holds_secret(data)
    assert ids(data) == [2, 3, 5, 6]


def test_a_service(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with SuffixCache(data, background=False) as cache, watched(cache) as address:
        session = cache.namespace("a").open_session([1], principal="ann")
        session.step(SECRET, max_draft_tokens=0)
        assert main(["forget", "--server", address, "--principal", "ann", "--from-disk"]) == 0
        out = capsys.readouterr().out
        assert "2 outputs deleted, 1 live session retracted in 2 namespaces" in out
        assert "no file of the data folder holds what was deleted" in out
        assert main(["forget", "--server", address, "--output", "2"]) == 0
        assert "within about a minute; --from-disk waits for it" in capsys.readouterr().out
        assert main(["forget", "--server", address, "--namespace", "nowhere"]) == 2
        assert "`suffixsvc namespaces list` shows" in capsys.readouterr().err
        assert session.close() is None
        assert not holds_secret(data)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ([], "at least one criterion"),
        (["--label", "agent"], "--label must be NAME=VALUE"),
        (["--older-than", "soon"], "--older-than must be an age"),
        (["--principal", "a b"], "principal must be"),
        (["--namespace", "a//b"], "namespace path"),
        (["--namespace", "nowhere"], "must exist"),
        (["--output", "0"], "output_ids"),
    ],
)
def test_bad_options_are_one_line(
    data: Path, capsys: pytest.CaptureFixture[str], options: list[str], what: str
) -> None:
    assert main(["forget", "--data", str(data), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line.startswith("suffixsvc forget: ")
    assert what in line
    assert len(ids(data)) == 6


def test_a_service_and_a_folder_are_refused(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given: list[Any] = ["--data", str(data), "--server", "unix:/nowhere"]
    assert main(["forget", *given, "--principal", "ann"]) == 2
    assert "one of --server and --data" in capsys.readouterr().err

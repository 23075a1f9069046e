"""``suffixsvc namespaces`` and ``suffixsvc stats``."""

from __future__ import annotations

import json
import subprocess
from dataclasses import fields
from pathlib import Path

from suffixsvc import SuffixCache
from suffixsvc.engine.cache import CacheStats
from suffixsvc.index import NamespaceStats
from suffixsvc_cli.server.stats import _lines
from suffixsvc_client import ClientConfig, ServiceStats, SuffixClient
from support.command_line import run_verb
from support.serving import ServeProcess, socket_dir
from support.watching import WatchReader, hello, watched


def suffixsvc(*arguments: str, verb: str = "namespaces") -> subprocess.CompletedProcess[str]:
    return run_verb(verb, *arguments)


def test_namespaces_of_a_folder_are_listed_and_deleted(tmp_path: Path) -> None:
    """A mistyped path was answered by "Write to it first", and a list of none by nothing at all."""
    folder = tmp_path / "d"
    with SuffixCache(folder) as cache:
        for path in ("a", "a/b", "ab"):
            cache.namespace(path, "t").add_output([1, 2, 3])
    listed = suffixsvc("list", "a", "--data", str(folder), "--json")
    assert [each["path"] for each in json.loads(listed.stdout)] == ["a", "a/b"]
    deleted = suffixsvc("delete", "a", "--data", str(folder))
    assert (deleted.returncode, deleted.stdout) == (0, "1 output deleted\n")
    again = suffixsvc("delete", "a", "--data", str(folder))
    assert again.returncode == 2
    assert "namespace 'a' must exist" in again.stderr
    assert "`suffixsvc namespaces list` shows those that exist" in again.stderr
    for verb, arguments in (("stats", ["nope"]), ("forget", ["--namespace", "nope"])):
        missing = suffixsvc(*arguments, "--data", str(folder), verb=verb)
        assert missing.returncode == 2
        assert "`suffixsvc namespaces list` shows those that exist" in missing.stderr
        assert "Write to it" not in missing.stderr
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
    rows = [line.split("\t") for line in suffixsvc("list", "--data", str(folder)).stdout.splitlines()]
    assert [row[:2] for row in rows] == [["a/b", "t"], ["ab", "t"]]
    neither = suffixsvc("list")
    assert neither.returncode == 2
    assert "one of --server and --data must be given" in neither.stderr


def test_the_list_shows_what_namespaces_hold(tmp_path: Path) -> None:
    """No command showed statistics: the list had paths and fingerprints only. A service and a folder have the
    same figures, also of a namespace that no session uses."""
    folder = tmp_path / "d"
    with SuffixCache(folder) as cache:
        for number in range(2):
            cache.namespace("a", "t").add_output([1, 2, 3, number])
    listed = json.loads(suffixsvc("list", "--data", str(folder), "--json").stdout)
    held = listed[0]["bytes"]
    assert held > 0
    assert listed == [{"path": "a", "tokenizer": "t", "outputs": 2, "tokens": 8, "bytes": held}]
    (shown,) = suffixsvc("list", "--data", str(folder)).stdout.splitlines()
    assert shown == f"a\tt\t2 outputs\t8 tokens\t{held:,} bytes"
    with socket_dir() as place:
        service = ServeProcess(place)
        with service.start(), SuffixClient(service.address, ClientConfig(call_timeout_s=300)) as client:
            client.namespace("a", "t").add_output([1, 2, 3])
            served = json.loads(suffixsvc("list", "--server", service.address, "--json").stdout)
            assert [(each["path"], each["outputs"], each["tokens"]) for each in served] == [("a", 1, 3)]
            assert served[0]["bytes"] == client.namespace("a").stats().held_bytes > 0


def test_the_page_of_statistics_names_every_field() -> None:
    """docs/statistics.md explains all that stats() returns, of the client and of the engine."""
    page = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text(encoding="utf-8")
    for record in (ServiceStats, CacheStats):
        for field in fields(record):
            assert f"`{field.name}`" in page, field.name


def test_statistics_of_a_folder_and_of_a_service(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    with SuffixCache(folder) as cache:
        cache.namespace("a", "t").add_output([1, 2, 3, 4])
    found = json.loads(suffixsvc("--data", str(folder), "--json", verb="stats").stdout)
    assert {field.name for field in fields(CacheStats)} == found.keys()
    assert (found["outputs"], found["tokens"], found["last_lsn"]) == (1, 4, 1)
    one = json.loads(suffixsvc("a", "--data", str(folder), "--json", verb="stats").stdout)
    assert one.keys() == {field.name for field in fields(NamespaceStats)}
    unknown = suffixsvc("b", "--data", str(folder), verb="stats")
    assert unknown.returncode == 2
    assert "namespace 'b' must exist" in unknown.stderr
    assert suffixsvc(verb="stats").returncode == 2
    with socket_dir() as place:
        service = ServeProcess(place)
        with service.start(), SuffixClient(service.address, ClientConfig(call_timeout_s=300)) as client:
            namespace = client.namespace("a", "t")
            namespace.add_output([1, 2, 3, 4, 5, 6, 7, 8] * 4)
            session = namespace.open_session([1, 2])
            draft = session.step([3, 4], max_draft_tokens=4)
            session.step([*draft.token_ids.tolist(), 9])
            session.close()
            served = suffixsvc("--server", service.address, verb="stats").stdout
            told = dict(line.split("\t") for line in served.splitlines())
            as_json = json.loads(suffixsvc("a", "--server", service.address, "--json", verb="stats").stdout)
    assert told["outputs"] == "2"
    assert told["limit_bytes"].replace(",", "").isdigit() or told["limit_bytes"] == "no limit"
    assert told["store_failing"] == "no"
    assert told["task evict"].endswith(" runs")
    assert told["acceptance rate"].endswith("%")
    assert as_json.keys() == one.keys() | {"followers"}
    assert as_json["num_draft_tokens"] > 0


def test_failing_tasks_are_told() -> None:
    task = {
        "name": "evict",
        "runs": 3,
        "failures": 2,
        "failures_in_a_row": 1,
        "last_error": "full",
        "alive": False,
    }
    assert list(_lines({"background_tasks": [task]})) == [
        ("task evict", "3 runs, 2 failed, now failing: full, not running")
    ]


def test_a_deletion_names_silent_followers(tmp_path: Path) -> None:
    with SuffixCache(tmp_path / "d") as cache, watched(cache) as address:
        for path in ("a", "b"):
            cache.namespace(path).add_output([1])
        with WatchReader(address, hello("mute"), reports=False) as reader:
            for path in ("a", "b"):
                reader.follow(path)
            reader.until(lambda: {"a", "b"} <= reader.held.keys(), "contents")
            plain = suffixsvc("delete", "a", "--server", address)
            as_json = suffixsvc("delete", "b", "--server", address, "--json")
    assert plain.stdout == "1 output deleted\n"
    assert "follower mute (a test) has not confirmed it" in plain.stderr
    name = {"follower_id": "mute", "description": "a test"}
    found = {"namespace": "b", "outputs": 1, "acknowledged": [], "silent": [name]}
    assert json.loads(as_json.stdout) == found

"""``suffixsvc policy``: what it says of namespaces that publish runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command_line import run_verb

POLICY = """
[namespaces."pool"]
min_principals = 3

[principals."*"]
read = ["pool"]

[principals."auditor"]
follow = ["pool"]
"""


@pytest.mark.parametrize(
    ("principal", "namespace", "only"),
    [
        ("ann", "pool", True),
        ("ann", "pool/bob", True),
        ("auditor", "pool", False),
        ("pool", "pool/x", False),  # its own prefix
        ("ann", "other", False),
    ],
)
def test_published_runs_are_named(tmp_path: Path, principal: str, namespace: str, only: bool) -> None:
    file = tmp_path / "policies.toml"
    file.write_text(POLICY)
    explained = run_verb("policy", "explain", principal, namespace, "--policies", str(file))
    assert explained.returncode == 0, explained.stderr
    assert ("yes: published runs only" in explained.stdout) is only
    if namespace != "other":
        assert "min_principals\t3" in explained.stdout
    as_json = run_verb("policy", "explain", principal, namespace, "--policies", str(file), "--json")
    assert json.loads(as_json.stdout)["published_runs_only"] is only


def test_too_few_principals_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "policies.toml"
    file.write_text(POLICY.replace("min_principals = 3", "min_principals = 1"))
    checked = run_verb("policy", "check", str(file))
    assert checked.returncode == 2
    assert "namespaces.pool.min_principals" in checked.stderr
    assert "2 or more, or 0 for none" in checked.stderr


def test_a_path_is_no_pattern(tmp_path: Path) -> None:
    file = tmp_path / "policies.toml"
    file.write_text(POLICY.replace('["pool"]', '["pool/*"]'))
    checked = run_verb("policy", "check", str(file))
    assert checked.returncode == 2
    assert "Write 'pool': a path covers the namespaces below it" in checked.stderr


def test_limits_of_the_principal_are_shown(tmp_path: Path) -> None:
    file = tmp_path / "policies.toml"
    file.write_text(
        POLICY.replace('read = ["pool"]', 'read = ["pool"]\nmax_sessions = 9\nmax_outputs = 5')
        + "requests_per_second = 7\n"
    )

    def limits(principal: str) -> tuple[dict[str, int], bool]:
        found = run_verb("policy", "explain", principal, "pool", "--policies", str(file), "--json")
        answer = json.loads(found.stdout)
        return answer["limits_of_principal"], answer["named"]

    assert limits("auditor") == ({"requests_per_second": 7, "max_sessions": 9, "max_outputs": 5}, True)
    assert limits("ann") == ({"max_sessions": 9, "max_outputs": 5}, False)
    shown = run_verb("policy", "explain", "ann", "pool", "--policies", str(file)).stdout
    assert "'ann' has no table in the file" in shown
    assert "max_sessions of ann\t9" in shown
